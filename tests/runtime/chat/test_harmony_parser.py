# SPDX-License-Identifier: Apache-2.0
"""Answers in the harmony format: channels are told apart, calls are read, wherever the stream is cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.chat.answer_part import AnswerPart, Arguments, Call, Content, Reasoning, merged
from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.chat.calls.format import HARMONY
from pontil.runtime.chat.dialect import Dialect
from pontil.runtime.chat.harmony_parser import HarmonyParser

FUNCTIONS: dict[str, Any] = {"get_weather": None, "now": None}
THOUGHT = "<|channel|>analysis<|message|>I need the wéather.<|end|><|start|>assistant"
CITY = '{"city": "Łódź"}'
CALLED: list[AnswerPart] = [Call(0, "get_weather"), Arguments(0, CITY)]
# Our own texts in the form that the format's description shows: the text, its parts.
RECORDED: dict[str, tuple[str, list[AnswerPart]]] = {
    "an answer": (
        f"{THOUGHT}<|channel|>final<|message|>It rains.<|return|>",
        [Reasoning("I need the wéather."), Content("It rains.")],
    ),
    "a call": (
        f"{THOUGHT}<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{CITY}<|call|>",
        [Reasoning("I need the wéather."), *CALLED],
    ),
    "a call whose recipient comes first": (
        f" to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{CITY}", CALLED,
    ),
    "a call without its constraint": (f"<|channel|>commentary to=get_weather<|message|>\n{CITY}\n<|call|>", CALLED),
    "a preamble before a call": (
        "<|channel|>commentary<|message|>I look first.<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.now <|constrain|>json<|message|>{}<|call|>",
        [Content("I look first."), Call(0, "now"), Arguments(0, "{}")],
    ),
    "two calls": (
        f"<|channel|>commentary to=functions.get_weather<|message|>{CITY}<|call|><|start|>assistant<|channel|>"
        "commentary to=functions.now<|message|>{}<|call|>",
        [*CALLED, Call(1, "now"), Arguments(1, "{}")],
    ),
    "a function that nobody offered": (
        "<|channel|>commentary to=functions.rm<|message|>{}<|call|>",
        [Content("<|channel|>commentary to=functions.rm<|message|>{}")],
    ),
    "arguments that go wrong": (
        '<|channel|>commentary to=functions.now<|message|>{"x": 01}',
        [Call(0, "now"), Arguments(0, '{"x": 01'), Content("}")],
    ),
    "no header": ("  It rains <|channel.\n", [Content("  It rains <|channel.\n")]),
    "a header that is cut": (f"{THOUGHT}<|channel|>fin", [Reasoning("I need the wéather.")]),
    "nothing but space": (" \n", [Content(" \n")]),
}  # fmt: skip
SHARDS = (
    "<|channel|>", "<|message|>", "<|end|>", "<|start|>assistant", "<|call|>", "analysis", "final", "commentary",
    " to=functions.now", "{}", '{"x": 1}', "[", '"', "<|", "text", " ", "\n", "x" * 300,
)  # fmt: skip


def read(pieces: list[str]) -> list[AnswerPart]:
    parser = HarmonyParser(FUNCTIONS)
    return merged([*(part for piece in pieces for part in parser.feed(piece)), *parser.finish()])


@pytest.mark.parametrize(("text", "parts"), RECORDED.values(), ids=list(RECORDED))
def test_recorded_answers(text: str, parts: list[AnswerPart]) -> None:
    assert read([text]) == parts == read(list(text))
    for cut in range(len(text)):
        assert read([text[:cut], text[cut:]]) == parts, cut


@given(st.lists(st.sampled_from(SHARDS), max_size=14).map("".join), st.integers(0, 1 << 20))
def test_how_it_is_split_changes_nothing(text: str, cut: int) -> None:
    cut %= len(text) + 1
    assert read([text]) == read([text[:cut], text[cut:]]) == read(list(text))


def reader() -> AnswerReader:
    return Dialect(HARMONY, thought_id=9).reader(FUNCTIONS, False)


def test_tokens_of_reasoning() -> None:
    """The end of the first message ends reasoning; where a later message is reasoning too the count is not known."""
    for text, ids, count in (
        (f"{THOUGHT}<|channel|>final<|message|>a", [1, 2, 3, 9, 4], 4),
        ("<|channel|>analysis<|message|>a", [1, 2, 3], 3),
        ("<|channel|>final<|message|>a<|end|>", [1, 2, 9], 0),
        (f"{THOUGHT}{THOUGHT}", [1, 9, 2, 9], None),
        ("<|channel|>commentary<|message|>a<|end|><|start|>assistant" + THOUGHT, [1, 9, 2, 9], None),
    ):
        one = reader()
        one.feed(text)
        one.finish()
        assert one.reasoning_tokens(ids) == count, text


def test_a_call_is_complete_with_its_brace() -> None:
    for text, reason in ((RECORDED["a call"][0], "tool_calls"), (RECORDED["arguments that go wrong"][0], "stop"),
                         (RECORDED["an answer"][0], "stop")):  # fmt: skip
        one = reader()
        one.feed(text)
        assert one.reason("stop") == reason and one.reason("length") == "length"


def test_answers_are_read_without_functions_too() -> None:
    assert Dialect(HARMONY).reads({}) and "harmony" in str(Dialect(HARMONY)) and "told apart" in str(Dialect(HARMONY))
    one = Dialect(HARMONY).reader({}, False)
    assert one.feed(RECORDED["an answer"][0]) == RECORDED["an answer"][1]
