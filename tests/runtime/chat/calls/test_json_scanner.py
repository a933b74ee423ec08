# SPDX-License-Identifier: Apache-2.0
"""A value ends where Python's parser says that it ends, and a value that Python refuses is wrong."""

import json
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.chat.calls.json_scanner import MAX_DEPTH, JsonScanner, JsonStep

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
INDENTS = st.sampled_from([None, 0, 3])


def scan(text: str) -> tuple[JsonStep, int]:
    """The step that ended the scan, and the number of characters that belong to the value."""
    scanner = JsonScanner()
    for position, character in enumerate(text):
        step = scanner.take(character)
        if step is not JsonStep.INSIDE:
            return step, position + (step is JsonStep.LAST)
    return JsonStep.INSIDE, len(text)


@given(value=VALUES, indent=INDENTS, escaped=st.booleans(), behind=st.sampled_from(["", " ", "}", ",", "\n]", "x"]))
def test_a_value_ends_where_it_ends(value: Any, indent: Any, escaped: bool, behind: str) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    step, size = scan(text + behind)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not behind:
        assert (step, size) == (JsonStep.INSIDE, len(text))
    else:
        assert (step, size) == (JsonStep.BEHIND if number else JsonStep.LAST, len(text))


@settings(max_examples=examples(80, 400))
@given(st.text(alphabet='{}[]",:\\ \n0123-+.eEtrufalsn', max_size=14))
def test_what_python_refuses_is_never_complete(text: str) -> None:
    step, size = scan(text + "\x00")
    try:
        _, end = json.JSONDecoder().raw_decode(text.lstrip())
    except ValueError:
        assert step in (JsonStep.WRONG, JsonStep.INSIDE)
        return
    if step is not JsonStep.WRONG:  # "01" is a 0 to Python, which reads no further
        assert size == end + len(text) - len(text.lstrip())


@pytest.mark.parametrize(
    "text",
    ["01,", "1.,", "-,", "+1", ".5", "1e,", '"\t"', '"\\x"', '"\\u12g4"', "tru ", "nul1", "{,", "[,", '{"a"}', "{1:",
     '{"a":1,}', "[1,]", '{"a":1]', "[1}", "NaN", "'a'", "Infinity", "\v1"],
)  # fmt: skip
def test_what_is_wrong_is_seen(text: str) -> None:
    assert scan(text)[0] is JsonStep.WRONG


def test_depth_has_an_end() -> None:
    assert scan("[" * MAX_DEPTH)[0] is JsonStep.INSIDE and scan("[" * (MAX_DEPTH + 1)) == (JsonStep.WRONG, MAX_DEPTH)
