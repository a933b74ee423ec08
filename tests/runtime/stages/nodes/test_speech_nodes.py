# SPDX-License-Identifier: Apache-2.0
"""Speech in tones: the same outputs however a text arrives, and however often it is begun."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.nodes.clauses import pieces_of
from pontil.runtime.stages.nodes.node import AUDIO, NodeInput, NodeRun, TaskInput
from pontil.runtime.stages.nodes.recognizer import Recognizer
from pontil.runtime.stages.nodes.speaker import Speaker
from pontil.runtime.stages.nodes.speech_nodes import SLICE, RecognizerNode, SpeakerNode, identity_of
from pontil.runtime.stages.nodes.wav import write_wav
from pontil.runtime.stages.worker.node_assembly import PEAK, RATE, SAMPLES, Tones, tones

NODE = SpeakerNode(Tones(), "tones")
TEXTS = st.lists(st.sampled_from(["Hi. ", "é", "日本。", "Mr. X ", "\n", " ", "a", "B? ", "🎈"]), max_size=40).map(
    "".join
)


def chunk_of(parts: list[bytes], final: bool) -> NodeInput:
    return NodeInput("speak", {"text": [np.frombuffer(part, np.uint8) for part in parts]}, final=final)


def run(node: SpeakerNode | RecognizerNode, task: TaskInput, chunks: list[list[bytes]]) -> list[bytes]:
    """Return the outputs of a task whose items come in these chunks, the last of them final."""
    begun: NodeRun = node.begin(task)
    made = [
        list(begun.feed(chunk_of(chunk, number == len(chunks)))) for number, chunk in enumerate(chunks, 1)
    ]  # fmt: skip
    return [one for outputs in made for one in outputs if one is not None]


@given(TEXTS, st.lists(st.integers(0, 120), max_size=12), st.integers(0, 20), st.booleans())
def test_outputs_depend_on_the_text_alone(text: str, cuts: list[int], delivered: int, late: bool) -> None:
    """Items end within characters too. Outputs that are delivered keep their numbers and are not made again."""
    data = text.encode()
    places = [0, *sorted(min(one, len(data)) for one in cuts), len(data)]
    parts = [data[start:end] for start, end in zip(places, places[1:], strict=False)]
    spoken = [tones(" ".join(piece.split()).encode()) for piece in pieces_of([text]) if piece.split()]
    assert run(NODE, TaskInput(data), [[]]) == spoken
    made = run(NODE, TaskInput(delivered=delivered), [[part] for part in parts] + [[]] * late)
    known = min(delivered, len(spoken))
    assert made == [b""] * known + spoken[known:]


def test_any_bytes_are_spoken() -> None:
    assert run(NODE, TaskInput(), [[b"\xf0\x9f"]]) == [tones("\ufffd".encode())]
    assert run(NODE, TaskInput(b""), [[]]) == []


def test_a_long_text_is_spoken_in_short_pieces_of_work() -> None:
    """Each piece of work is one clause, and none reads ahead for more than a part of the text."""
    text = "abc def. X" * (SLICE // 2)
    pieces = NODE.begin(TaskInput(text.encode())).feed(NodeInput("speak", {}, final=True))
    assert len(next(pieces) or b"") == 2 * SAMPLES * len("abc def.")
    assert sum(1 for _ in pieces) == text.count(". ")


def test_tones_tell_every_byte() -> None:
    assert (NODE.kind, NODE.sample_rate, NODE.one_per_chunk) == (AUDIO, RATE, False)
    samples = np.frombuffer(tones(bytes(range(256))), "<i2").reshape(256, SAMPLES)
    assert samples[:, -1].tolist() == [PEAK * byte for byte in range(256)]
    assert np.array_equal(samples[200], 200 * np.arange(1, SAMPLES + 1) * PEAK // SAMPLES)
    assert Tones().phonemes(" \n") == [] and Tones().say(["a", "b"]) == tones(b"a b")


def test_the_real_nodes_hear_what_they_say(speaker: Speaker, recognizer: Recognizer) -> None:
    voice = SpeakerNode(speaker, "voice")
    text = b"The weather is fine today. *** We go to the sea."
    spoken = run(voice, TaskInput(text), [[]])
    assert len(spoken) == 2 and all(spoken)
    assert run(voice, TaskInput(delivered=1), [[text]]) == [b"", spoken[1]]
    listener = RecognizerNode(recognizer, "ear")
    heard = run(listener, TaskInput(write_wav(b"".join(spoken), speaker.rate)), [[]])
    assert b"".join(heard).decode() == recognizer.recognize(b"".join(spoken), speaker.rate).text
    with pytest.raises(RequestError, match="no recording"):
        listener.begin(TaskInput(b""))


def test_an_identity_is_that_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    one = identity_of(tmp_path)
    assert one == identity_of(tmp_path)
    (tmp_path / "b").write_bytes(b"22")
    assert one != identity_of(tmp_path) != identity_of(tmp_path / "b")
