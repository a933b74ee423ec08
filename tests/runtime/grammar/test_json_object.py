# SPDX-License-Identifier: Apache-2.0
"""A JSON object of which nothing is asked may be anything that people ask for, and has an end."""

import json
from typing import Any

import pytest

from pontil.runtime.grammar.byte_matcher import ByteMatcher, byte_words
from pontil.runtime.grammar.grammar_text import MOST_ITEMS, MOST_MEMBERS, bounded_object, grammar_of_schema

MATCHER = ByteMatcher(grammar_of_schema(bounded_object()), byte_words())
RECORD: dict[str, Any] = {"name": "é", "born": 1815, "height": 1.65, "alive": False, "title": None, "tags": ["a", "b"]}


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    "value",
    [{}, RECORD, {"people": [RECORD] * 20, "matrix": [[1, 2], [3]]}, {"a": {"b": {"list": [{"c": RECORD["tags"]}]}}},
     nested(len(MOST_MEMBERS)), {"a": "x" * 100_000}, dict.fromkeys(map(str, range(MOST_MEMBERS[0])), 1)],
)  # fmt: skip
@pytest.mark.parametrize("indent", [None, 2])
def test_usual_objects_are_possible(value: Any, indent: int | None) -> None:
    assert MATCHER.matches(json.dumps(value, indent=indent, ensure_ascii=False))


@pytest.mark.parametrize(
    "value",
    [[], 1, nested(len(MOST_MEMBERS) + 1), {"a": [1] * (MOST_ITEMS[0] + 1)},
     dict.fromkeys(map(str, range(MOST_MEMBERS[0] + 1)), 1), {"a": [[[1]]]}, {"a": {"b": [{}] * (MOST_ITEMS[1] + 1)}}],
)  # fmt: skip
def test_each_part_has_a_bound(value: Any) -> None:
    assert not MATCHER.matches(json.dumps(value))
