# SPDX-License-Identifier: Apache-2.0
"""The stages of models of several, over arithmetic that hashes, and what they must make of an answer.

Each item carries the running hash of all before it: a state those of the first stage's tokens, a frame those of the
rows that led to it. So an item that is lost, repeated or another attempt's makes another sound.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from hash_model import WIDTH, mixed, numbers_of, token_after, value_of
from numpy.typing import NDArray
from random_models import HashStage, plain_cut
from torch import Tensor
from virtual_time import HERE

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.graph import catalog
from pontil.runtime.stages.graph.catalog import ORPHEUS, PROMPT_UNIT, QWEN3_OMNI, TINY_SPEECH, GraphModel
from pontil.runtime.stages.graph.policies import ChunkPolicy, LeftContext, SlidingWindow
from pontil.runtime.stages.graph.stream_buffer import StreamFault
from pontil.runtime.stages.nodes.clauses import pieces_of
from pontil.runtime.stages.nodes.node import AUDIO, NOTHING, NodeInput, Pieces, StageNode, TaskInput
from pontil.runtime.stages.nodes.speech_nodes import SpeakerNode
from pontil.runtime.stages.streams.state_stream import units_of
from pontil.runtime.stages.worker import open_stage
from pontil.runtime.stages.worker.stage_parts import StageParts

# Ids of the stage that speaks. The last one ends its answer: a speech has so many frames, on average.
SPEECH_IDS, SPEECH_ENDS = 41, 40
CODES, CODE_SIZE, MOST_FRAMES = 4, 50, 60
# Ids that are codes of a model whose tokens are sound, and its windows of them.
SOUND_IDS, WINDOWS = range(20, 200), SlidingWindow(8, 2)
# The item of the text at which it ends, and those behind.
TEXT_END, PADDING = 1, 0
# The chunks of frames, and how far each stage may be ahead of the next.
CHUNKS, STATES_AHEAD, FRAMES_AHEAD = LeftContext(12, 5, lead=(3, 2, 5)), 8, 16
VOICES = ("alto", "bass")
# Seconds of a piece of work of so many items.
Spend = Callable[[int], float]


def small_omni() -> GraphModel:
    """Return Qwen3-Omni's graph with short speech, small chunks and narrow windows: its stages wait for each other."""
    nodes = [
        replace(one, codes=CODES, max_tokens=MOST_FRAMES, sampling=()) if one.codes > 1 else one
        for one in QWEN3_OMNI.nodes
    ]
    states, codes, media = QWEN3_OMNI.graph.connections
    connections = (
        replace(states, capacity=STATES_AHEAD), replace(codes, policy=CHUNKS, capacity=FRAMES_AHEAD), media,
    )  # fmt: skip
    graph = replace(QWEN3_OMNI.graph, name="small-omni", connections=connections)
    return replace(
        QWEN3_OMNI, name="small-omni", nodes=tuple(nodes), graph=graph, architecture=None, names=(), voices=VOICES
    )


def small_orpheus() -> GraphModel:
    """Return the graph of an Orpheus with small windows, whose chats are spoken."""
    (codes,) = ORPHEUS.graph.connections
    graph = replace(ORPHEUS.graph, name="small-orpheus", connections=(replace(codes, policy=WINDOWS, capacity=9),))
    return replace(ORPHEUS, name="small-orpheus", graph=graph, architecture=None, speech=None, voices=())


SMALL_OMNI, SMALL_ORPHEUS = small_omni(), small_orpheus()


def serve_small_models() -> None:
    serve(SMALL_OMNI)
    serve(SMALL_ORPHEUS)


def serve(model: GraphModel) -> None:
    """Have the catalog know a model."""
    known = MappingProxyType({**catalog.GRAPHS, model.name: model})
    untyped: Any = catalog
    untyped.GRAPHS = known
    untyped = open_stage
    untyped.GRAPHS = known


def folded(values: Sequence[int], begin: int = 0) -> int:
    running = begin
    for value in values:
        running = mixed(running, value)
    return running


def frame_of(running: int, seed: int, first: int) -> list[int]:
    return [first, *(mixed(mixed(running, seed), place) % CODE_SIZE for place in range(1, CODES))]


def last_row(item: int, voice: str) -> int:
    """Return the last row of a prompt of speech, made of the text's first item."""
    return mixed(mixed(item, 7), VOICES.index(voice))


def step_row(frame: Sequence[int], item: int) -> int:
    return mixed(folded(frame), item)


class HashTalker:
    """A TalkerStage, and its FrameMaker, whose hidden states are the running hash."""

    @property
    def maker(self) -> "HashTalker":
        return self

    def frames(self, rows: Sequence[tuple[int, int, int, bool]], hidden: Tensor) -> list[list[int]]:
        return [
            frame_of(value_of(state), seed, token)
            for (seed, _, token, _), state in zip(rows, hidden.tolist(), strict=True)
        ]

    def rows(self, prompt: Sequence[int], options: Mapping[str, Any]) -> "HashRows":
        voice = options.get("voice") or VOICES[0]
        if voice not in VOICES:
            raise RequestError(f"this model has no voice {voice!r}", param="voice")
        return HashRows(len(prompt), voice)

    def angles(self, prompt: Sequence[int], options: Mapping[str, Any]) -> None:
        return None

    def is_frame(self, codes: Sequence[int]) -> bool:
        return is_frame(codes)


def is_frame(codes: Sequence[int]) -> bool:
    return len(codes) == CODES and 0 <= codes[0] < SPEECH_IDS and all(0 <= code < CODE_SIZE for code in codes[1:])


def parts_of(graph: str | None, stage: str | None) -> StageParts:
    """Return what stands beside the decoder of a stage."""
    if graph == SMALL_ORPHEUS.name:
        return StageParts(codes=SOUND_IDS)
    if stage == "talker":
        return StageParts(talker=HashTalker(), sampling={"stop_token_ids": [SPEECH_ENDS]})
    return StageParts(state_layers=1) if stage == "thinker" else StageParts()


class HashRows:
    """A RowBuilder of one run: a row for each position of the first stage's prompt, one of the first item of the text,
    and then one of each frame and the next item."""

    @property
    def begins_in_prompt(self) -> bool:
        """True for some prompts: the worker that goes on behind them takes the items of all walks then."""
        return self.length % 3 == 0

    def __init__(self, length: int, voice: str) -> None:
        self.length, self.voice = length, voice
        self.arrived, self.ended, self.finished = 0, False, False
        self.ready: list[int] = []
        self.items: list[int] = []

    @property
    def prompt_rows(self) -> int:
        return self.length + 1

    def push(self, states: Tensor) -> None:
        left = self.length - self.arrived
        if states.dtype != torch.float32 or states.shape != (min(PROMPT_UNIT, left) if left > 0 else 1, 2, WIDTH // 2):
            raise StreamFault("an item is not the states of a position of this run")
        values = [value_of(numbers) for numbers in states.reshape(-1, WIDTH).tolist()]
        if left > 0:
            self.ready += values
        else:
            self.items += values
        self.arrived += len(values)
        self.finish_prompt()

    def end(self) -> None:
        if self.arrived < self.length:
            raise StreamFault("the states end before those of the prompt are here")
        self.ended = True
        self.finish_prompt()

    def finish_prompt(self) -> None:
        first = self.item(0)
        if first is not None and self.arrived >= self.length and not self.finished:
            self.finished = True
            self.ready.append(last_row(first, self.voice))

    def item(self, number: int) -> int | None:
        """Return an item of the text, None while it has not arrived."""
        if number < len(self.items):
            return self.items[number]
        return None if not self.ended else item_behind(number, len(self.items))

    def is_behind(self, frame: Sequence[int], next_index: int) -> bool:
        return next_index - units_of(self.length) in (0, 1) and is_frame(frame)

    def resume(self, next_index: int) -> None:
        positions = next_index - units_of(self.length)
        self.arrived, self.finished, self.items = self.length + positions, True, [PADDING] * positions

    def take_prompt(self) -> list[Tensor]:
        taken, self.ready = self.ready, []
        return [row_of(value) for value in taken]

    def step(self, number: int, frame: Sequence[int]) -> Tensor | None:
        item = self.item(number + 1)
        return None if item is None else row_of(step_row(frame, item))


def row_of(value: int) -> Tensor:
    return torch.tensor(numbers_of(value), dtype=torch.float32)


def item_behind(number: int, count: int) -> int:
    return TEXT_END if number == count else PADDING


class HashVoice:
    """The voice of a SpeakerNode. A piece of work takes so many seconds."""

    rate = TINY_SPEECH.sample_rate

    def __init__(self, spend: Spend) -> None:
        self.spend = spend

    def phonemes(self, piece: str) -> list[str]:
        return [piece] if piece.strip() else []

    def say(self, phonemes: Sequence[str]) -> bytes:
        HERE.world.spend(self.spend(len(phonemes[0])))
        return said(phonemes[0])


def said(piece: str) -> bytes:
    """Return the samples of a piece of text."""
    running = folded(list(piece.encode()))
    return samples_of(mixed(running, place) for place in range(1 + len(piece) // 8))


def samples_of(values: Iterator[int]) -> bytes:
    return np.array([value & 0xFFFF for value in values], "<u2").tobytes()


class HashVocoder:
    """A StageNode. Each chunk of frames is one output."""

    identity, kind, sample_rate, one_per_chunk = "hash", AUDIO, SMALL_OMNI.sample_rate, True

    def __init__(self, spend: Spend) -> None:
        self.spend = spend

    def begin(self, task: TaskInput) -> "HashVocoder":
        if task.data is not None:
            raise RequestError("this model speaks its own answers only")
        return self

    def feed(self, given: NodeInput) -> Pieces:
        items, context = given.of("codes")
        if items:
            HERE.world.spend(self.spend(len(items)))
            yield sounded([frame_in(one) for one in items], [frame_in(one) for one in context])
        return NOTHING


class HashWindows:
    """A StageNode. Each window of codes is one output."""

    identity, kind, sample_rate, one_per_chunk = "hash", AUDIO, SMALL_ORPHEUS.sample_rate, True

    def __init__(self, spend: Spend) -> None:
        self.spend = spend

    def begin(self, task: TaskInput) -> "HashWindows":
        if task.data is not None:
            raise RequestError("this stage makes sound of codes")
        return self

    def feed(self, given: NodeInput) -> Pieces:
        items, context = given.of("codes")
        if items:
            HERE.world.spend(self.spend(len(items)))
            yield sounded([one.tolist() for one in items], [one.tolist() for one in context])
        return NOTHING


def frame_in(item: NDArray[Any]) -> list[int]:
    codes: list[list[int]] = item.tolist()
    if item.dtype != np.int32 or len(codes) != 1 or not is_frame(codes[0]):
        raise RequestError("a frame is not of this model", status=503)
    return codes[0]


def sounded(frames: Sequence[Sequence[int]], before: Sequence[Sequence[int]]) -> bytes:
    """Return the samples of a chunk of frames: one for each code, which depends on all frames shown before it."""
    running, made = folded([folded(frame) for frame in before]), list[int]()
    for frame in frames:
        for code in frame:
            running = mixed(running, code)
            made.append(running)
    return samples_of(iter(made))


NODES: Mapping[tuple[str, str], Callable[[Spend], StageNode]] = MappingProxyType({
    (TINY_SPEECH.name, "speaker"): lambda spend: SpeakerNode(HashVoice(spend), "hash"),
    (SMALL_OMNI.name, "code2wav"): HashVocoder,
    (SMALL_ORPHEUS.name, "snac"): HashWindows,
})  # fmt: skip


def node_of(model: GraphModel, stage: str, spend: Spend) -> StageNode:
    """Return the node of a stage, of these models or of a random one."""
    made = NODES.get((model.name, stage))
    return HashStage(model, stage, lambda: HERE.world.spend(spend(1))) if made is None else made(spend)


# The oracle.


def spoken_frames(prompt: Sequence[int], answer: Sequence[int], seed: int, voice: str) -> list[list[int]]:
    """Return a frame for each id that the stage that speaks must sample, to an answer of the first stage."""
    states, running = list[int](), 0
    for token in (*prompt, *answer[:-1]):
        running = mixed(running, token)
        states.append(running)
    items = states[len(prompt) :]

    def item(number: int) -> int:
        return items[number] if number < len(items) else item_behind(number, len(items))

    running, frames = folded([*states[: len(prompt)], last_row(item(0), voice)]), list[list[int]]()
    while len(frames) < MOST_FRAMES:
        frames.append(frame_of(running, seed, token_after(running, seed, 0, SPEECH_IDS)))
        if frames[-1][0] == SPEECH_ENDS:
            break
        running = mixed(running, step_row(frames[-1], item(len(frames))))
    return frames


def sound_of_frames(frames: Sequence[Sequence[int]]) -> bytes:
    """Return the sound of these frames, the last of which is that of the end or of a limit, and has none."""
    return sound_of_items(frames[:-1], CHUNKS)


def sound_of_codes(ids: Sequence[int]) -> bytes:
    """Return the sound of the codes among these ids."""
    return sound_of_items([[token - SOUND_IDS.start] for token in ids if token in SOUND_IDS], WINDOWS)


def sound_of_items(items: Sequence[Sequence[int]], policy: ChunkPolicy) -> bytes:
    return b"".join(
        sounded(items[new.start : new.stop], items[context.start : context.stop])
        for _, new, context in plain_cut([None] * len(items), policy, None)
    )


def sound_of_text(text: str) -> bytes:
    return b"".join(said(piece) for piece in pieces_of([text]) if piece.strip())
