# SPDX-License-Identifier: Apache-2.0
"""The places in which prompts first differ from those before them: exact, by key and salt, and in bounded memory."""

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.proxy.requests import prompt_reuse
from pontil.runtime.proxy.requests.prompt_reuse import PIECE, PromptParts, PromptReuse, common_tokens


def ids_of(prompt: list[int]) -> bytes:
    return array("i", prompt).tobytes()


def parts(*said: str, tools: Any = ()) -> PromptParts:
    roles = ["system", "user", "assistant"]
    return PromptParts.of(tools, [{"role": roles[at % 3], "content": text} for at, text in enumerate(said)])


def begin(
    reuse: PromptReuse, prompt: list[int], made: PromptParts | None = None, key: str = "k", salt: str = ""
) -> Any:
    reuse.begin(key, salt, prompt, made)
    return reuse.callers[key].difference


@given(st.integers(0, PIECE), st.integers(0, 40), st.integers(0, 40))
def test_the_beginning_that_two_prompts_have_in_common(same: int, one: int, other: int) -> None:
    alike = list(range(same))
    assert common_tokens(ids_of(alike + [-1] * one), ids_of(alike + [-2] * other)) == same


def test_a_first_difference_names_its_message() -> None:
    reuse = PromptReuse()
    assert begin(reuse, [1, 2, 3, 4], parts("be brief", "hi")) is None
    found = begin(reuse, [1, 9, 3, 4, 5], parts("be kind", "hi", "Yes.", "go on"))
    assert found.shown == {"token": 1, "of": 5, "part": "system", "message": 0}
    found = begin(reuse, [1, 9, 3, 4, 5], parts("be kind", "hi", tools=["t"]))
    assert found is None, "the same ids are the same prompt, whatever they were made of"
    found = begin(reuse, [1, 9, 3, 4, 6], parts("be kind", "hi", tools=["u"]))
    assert (found.part, found.message) == ("tools", None)
    found = begin(reuse, [1, 9, 3, 4, 7], parts("be kind", "ho", tools=["u"]))
    assert (found.token, found.part, found.message) == (4, "user", 1)
    assert reuse.places == {"unknown": 1, "system": 1, "goes_on": 1, "tools": 1, "user": 1}


def test_parts_may_be_nested_deeply() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    made = parts("s", "hi", tools=deep)
    assert made.differs_in(parts("s", "ho", tools=deep)) == ("user", 1)
    while deep:
        (deep,) = deep


def test_a_session_that_goes_on_differs_nowhere() -> None:
    reuse = PromptReuse()
    begin(reuse, [1, 2, 3], parts("s", "hi"))
    assert begin(reuse, [1, 2, 3, 4, 5], parts("s", "hi", "Yes.", "go on")) is None
    assert begin(reuse, [1, 2, 3, 4, 7, 8], parts("s", "hi", "Yes.", "go on", "x")).part == "template"
    assert len(reuse.kept) == 1, "it has the place of its earlier turns"


def test_turns_of_several_sessions_may_alternate() -> None:
    reuse = PromptReuse()
    for turn in range(1, 5):
        for session in range(prompt_reuse.MOST_OF_SESSION):
            begin(reuse, [0, session, *range(10, 10 + turn)])
    assert reuse.places == {"unknown": 1, "text": 3, "goes_on": 12}


@pytest.mark.parametrize(("key", "salt"), [("other", ""), ("k", "other")])
def test_other_keys_and_salts_are_not_compared(key: str, salt: str) -> None:
    reuse = PromptReuse()
    begin(reuse, [1, 2, 3])
    assert begin(reuse, [1, 2, 4], key=key, salt=salt) is None and reuse.places == {"unknown": 2}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_reuse, "MOST_CALLERS", 3)
    monkeypatch.setattr(prompt_reuse, "MOST_PROMPTS", 5)
    monkeypatch.setattr(prompt_reuse, "MOST_BYTES", 64)
    monkeypatch.setattr(prompt_reuse, "MOST_TOKENS", 8)
    monkeypatch.setattr(prompt_reuse, "MOST_PARTS", 4)
    reuse = PromptReuse()
    for number in range(40):
        begin(reuse, [number] * 99, parts(*"abcdefgh"), key=f"k{number % 7}")
        assert len(reuse.callers) <= 3 and len(reuse.kept) <= 5
        assert sum(len(kept.ids) for kept in reuse.kept) <= 64
        assert all(kept.parts is not None and len(kept.parts.messages) <= 4 for kept in reuse.kept)
    assert sum(reuse.places.values()) == 40


def test_rows_have_the_workers_counts() -> None:
    reuse = PromptReuse()
    begin(reuse, [1, 2], key="a")
    reuse.end("a", 100, 0)
    begin(reuse, [1, 3], key="a")
    reuse.end("a", 100, 50)
    begin(reuse, [1], key="b")
    assert reuse.rows() == [
        {"key": "b", "prompts": 0, "prompt_tokens": 0, "cached_tokens": 0, "difference": None},
        {
            "key": "a",
            "prompts": 2,
            "prompt_tokens": 200,
            "cached_tokens": 50,
            "difference": {"token": 1, "of": 2, "part": "text", "message": None},
        },
    ]
