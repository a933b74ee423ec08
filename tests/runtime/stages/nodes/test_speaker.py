# SPDX-License-Identifier: Apache-2.0
"""The real voice: the same text gives the same samples, and what it says is understood."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pontil.runtime.errors import ModelError
from pontil.runtime.stages.nodes.clauses import MOST
from pontil.runtime.stages.nodes.recognizer import Recognizer
from pontil.runtime.stages.nodes.speaker import Speaker, spoken
from pontil.runtime.stages.nodes.wav import write_wav

SENTENCE = "The quick brown fox jumps over the lazy dog, and then it sleeps under an old tree."
STORY = (
    "Once upon a time, a small boat left the harbor early in the morning. The sea was calm, and the sun was warm. "
    "Its captain had a map of every island in the north. Nobody knew who had drawn it. After three days they saw land. "
    "There were tall trees, white birds, and a river of clear water. They stayed for a week, and they built a house of "
    "stone. When winter came, the captain wrote a letter to his brother. He asked for bread, wool, and candles. "
    "The answer came in the spring, on a white ship with two masts."
)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def missed(said: str, heard: str) -> float:
    """Return the part of the words said that is not heard in their order: one minus the longest common sequence."""
    rows = [0] * (len(words(heard)) + 1)
    for word in words(said):
        before = 0
        for place, other in enumerate(words(heard), 1):
            before, rows[place] = rows[place], before + 1 if word == other else max(rows[place], rows[place - 1])
    return 1 - rows[-1] / len(words(said))


def test_what_is_spoken_is_recognized(speaker: Speaker, recognizer: Recognizer) -> None:
    samples = speaker.speak(SENTENCE)
    assert speaker.rate == 24000
    heard = recognizer.recognize(write_wav(samples, speaker.rate))
    assert missed(SENTENCE, heard.text) < 0.1, heard.text
    assert heard.seconds == len(samples) / 2 / speaker.rate
    assert recognizer.recognize(samples, speaker.rate) == heard


@pytest.mark.long
def test_a_story_of_more_than_a_window_is_recognized(speaker: Speaker, recognizer: Recognizer) -> None:
    pieces = list(speaker.stream(re.findall(r"\S+\s*", STORY)))
    heard = recognizer.recognize(b"".join(pieces), speaker.rate)
    assert len(pieces) == 10
    assert heard.seconds > 30
    assert missed(STORY, heard.text) < 0.1, heard.text


@pytest.mark.long
def test_the_same_text_gives_the_same_samples(speaker: Speaker, voice: Path) -> None:
    """Also in another speaker, and whatever was spoken before; parts of any size give the same pieces."""
    first = speaker.speak(SENTENCE)
    speaker.speak("Something else.")
    assert speaker.speak(SENTENCE) == first
    assert Speaker(voice).speak(SENTENCE) == first
    text = f"Yes. {SENTENCE} And so on"
    assert list(speaker.stream([text])) == list(speaker.stream(text))


def test_the_first_piece_is_spoken_before_the_text_ends(speaker: Speaker) -> None:
    arrived = []

    def parts() -> Iterator[str]:
        for part in ("It rains. ", "The sun", " shines."):
            arrived.append(part)
            yield part

    stream = speaker.stream(parts())
    assert next(stream) == speaker.speak("It rains. ")
    assert arrived == ["It rains. ", "The sun"]
    assert list(stream) == [speaker.speak("The sun shines.")]


def test_speed(speaker: Speaker, recognizer: Recognizer) -> None:
    usual = speaker.speak(SENTENCE)
    fast, slow = (speaker.speak(SENTENCE, speed) for speed in (2.0, 0.5))
    assert 0.4 < len(fast) / len(usual) < 0.7
    assert 1.6 < len(slow) / len(usual) < 2.4
    assert missed(SENTENCE, recognizer.recognize(slow, speaker.rate).text) < 0.2
    for speed in (0.49, 2.01, float("nan")):
        with pytest.raises(ValueError, match="the speed"):
            speaker.speak("Yes.", speed)


def test_samples_are_heard_and_not_clipped(speaker: Speaker) -> None:
    samples = np.frombuffer(speaker.speak(SENTENCE), "<i2")
    assert 3000 < np.abs(samples.astype(int)).max() < 32767


@pytest.mark.parametrize("text", ["", " \n", "…", "😀", "日本語", "\x00\x07"])
def test_text_without_words_is_no_failure(speaker: Speaker, text: str) -> None:
    assert len(speaker.speak(text)) < 2 * speaker.rate


@pytest.mark.parametrize(
    "text", ["1" * MOST, "¹\x07\U000b781e*", "9,9" * 60, "1/" * 40, "A" * MOST, "[x](/" + "a" * 190]
)
def test_odd_text_is_spoken(speaker: Speaker, text: str) -> None:
    assert speaker.speak(text)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(max_size=60), st.text(st.sampled_from("0123456789.,:/$%£²½-aIx'[]()* "), max_size=60)))
def test_no_text_fails(speaker: Speaker, text: str) -> None:
    assert len(speaker.speak(text)) % 2 == 0


def test_a_piece_is_bounded(speaker: Speaker) -> None:
    with pytest.raises(ValueError, match="201 characters"):
        speaker.speak("a" * (MOST + 1))


def test_wrong_weights_are_named(speaker: Speaker, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not there"):
        Speaker(tmp_path / "voice.onnx")
    (tmp_path / "voice.onnx").write_bytes(b"no network")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Speaker(tmp_path / "voice.onnx")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("**Bold** and `code`", " Bold  and  code "),
        ("- an item", "an item"),
        ("See [the page](https://example.org/a_b).", "See the page."),
        ("2 * 3 | 4", "2 * 3 | 4"),
        ("[word](/wˈɜɹd/)", "word"),
        ("call 123456789012345", "call 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5"),
        ("1,000,000 people", "1,000,000 people"),
        ("x² ٣", "x2 3"),
        ("a\x00b\u200bc", "a b c"),
    ],
)
def test_spoken_text(text: str, says: str) -> None:
    assert spoken(text) == says
