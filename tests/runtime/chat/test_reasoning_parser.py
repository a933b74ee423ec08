# SPDX-License-Identifier: Apache-2.0
"""Reasoning and answer are separated however the text is split."""

from collections.abc import Sequence

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.chat.answer_part import Content, Reasoning, merged
from pontil.runtime.chat.reasoning_parser import ReasoningParser

SHARDS = ("<think>", "</think>", "<thi", "nk>", "</", "<", ">", " ", "\n", "hm", "é", "answer", "<tool_call>")
TEXTS = st.lists(st.sampled_from(SHARDS), max_size=10).map("".join)


def read(pieces: Sequence[str], opened: bool = False) -> tuple[str, str]:
    """Reasoning and content, in this order."""
    parser = ReasoningParser(opened)
    parts = merged([*(part for piece in pieces for part in parser.feed(piece)), *parser.finish()])
    assert len(parts) <= 2
    found = {type(part): part.text for part in parts if isinstance(part, Reasoning | Content)}
    assert list(found) == [kind for kind in (Reasoning, Content) if kind in found]
    return found.get(Reasoning, ""), found.get(Content, "")


@settings(max_examples=examples(60, 300))
@given(text=TEXTS, cut=st.integers(0, 99), opened=st.booleans())
def test_how_it_is_split_changes_nothing(text: str, cut: int, opened: bool) -> None:
    whole = read([text], opened)
    cut %= len(text) + 1
    assert read([text[:cut], text[cut:]], opened) == whole == read(list(text), opened)
    for part in whole:
        assert part in text
    if not opened and not text.lstrip().startswith("<think>"):
        assert whole == ("", text)


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("<think>\nIs it?\nYes.\n</think>\n\nIt is.", False, "Is it?\nYes.", "It is."),
        ("\n\n<think>hm</think>It is.  ", False, "hm", "It is.  "),
        ("<think>\n\n</think>\n\nIt is.", False, "", "It is."),
        ("Is it?\n</think>\n\nIt is.", True, "Is it?", "It is."),
        ("Is it? </thin", True, "Is it? </thin", ""),
        ("<think>cut short \n", False, "cut short \n", ""),
        ("It is <think>not</think>.", False, "", "It is <think>not</think>."),
        ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
        (" <thi", False, "", " <thi"),
        ("", True, "", ""),
    ],
)
def test_recorded_answers(text: str, opened: bool, reasoning: str, content: str) -> None:
    assert read([text], opened) == read(list(text), opened) == (reasoning, content)


def test_it_is_known_whether_there_is_reasoning_and_whether_it_is_over() -> None:
    parser = ReasoningParser()
    assert [(parser.feed(piece), parser.begun, parser.ended)[1:] for piece in ("<thi", "nk>a", "</think>", "b")] == [
        (False, False), (True, False), (True, True), (True, True),
    ]  # fmt: skip
