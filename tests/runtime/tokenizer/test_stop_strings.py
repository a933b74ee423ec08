# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.tokenizer.detokenizer import StopStrings

# Two letters make overlaps, repeats and near misses frequent.
stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)
parts = st.lists(st.text("abc", max_size=6), max_size=8)


def cut_by_definition(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Cut the whole text at once: at the first end of a stop string, the longest that ends there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(stops=stops, parts=parts, include=st.booleans())
def test_any_split_gives_what_the_definition_says(stops: list[str], parts: list[str], include: bool) -> None:
    matcher = StopStrings(stops, include)
    shown = "".join(matcher.feed(part) for part in parts) + matcher.finish()
    assert (shown, matcher.matched) == cut_by_definition("".join(parts), stops, include)


@given(stops=stops, parts=parts)
def test_nothing_is_held_back_without_need(stops: list[str], parts: list[str]) -> None:
    matcher = StopStrings(stops)
    text, shown = "", ""
    for part in parts:
        text, shown = text + part, shown + matcher.feed(part)
        if matcher.matched is None:
            held = text.removeprefix(shown)
            assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "include", "parts", "shown", "matched"),
    [
        (["END"], False, ["so E", "N", "D more"], ["so ", "", ""], "END"),
        (["END"], True, ["so E", "N", "D more"], ["so ", "", "END"], "END"),
        (["END"], False, ["so E", "N", "OD"], ["so ", "", "ENOD"], None),
        (["abc", "b"], False, ["ab", "c"], ["a", ""], "b"),
        (["c", "abc"], False, ["xab", "c"], ["x", ""], "abc"),
        (["aab"], False, ["aaa", "b"], ["a", ""], "aab"),
        (["🎉\n\n"], False, ["a🎉\n", "\nb"], ["a", ""], "🎉\n\n"),
        ([], False, ["ab", "c"], ["ab", "c"], None),
    ],
)
def test_pieces(stops: list[str], include: bool, parts: list[str], shown: list[str], matched: str | None) -> None:
    matcher = StopStrings(stops, include)
    assert [matcher.feed(part) for part in parts] == shown
    assert matcher.matched == matched


def test_what_is_left_at_the_end_is_shown_once() -> None:
    matcher = StopStrings(["END"])
    assert matcher.feed("the EN") == "the "
    assert (matcher.finish(), matcher.finish()) == ("EN", "")
    assert StopStrings(["END"]).feed("END") == ""
