# SPDX-License-Identifier: Apache-2.0
"""Answers are checked by the meaning that expressions and formats have in grammars, in old notations too."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.grammar.processes.answer_check import AnswerCheck
from pontil.runtime.grammar.processes.verdict import SchemaState
from pontil.runtime.grammar.schema_relaxation import PythonExpression

CHECK = AnswerCheck()
MET, NOT_MET = SchemaState.MET, SchemaState.NOT_MET


@pytest.mark.parametrize(
    ("schema", "value", "state"),
    [
        ({"pattern": r"^\p{L}+$"}, "é", MET),
        ({"pattern": r"^\p{L}+$"}, "é1", NOT_MET),
        ({"pattern": "^a$"}, "a\n", NOT_MET),
        ({"pattern": r"^[\s\S]{4}$"}, '\x7f\x00"/', MET),
        ({"pattern": r"^(?!x)\d$"}, "٣", NOT_MET),
        ({"pattern": r"^(?<q>['\"]).*\k<q>$"}, "'a'", MET),
        ({"pattern": r"^(?<q>['\"]).*\k<q>$"}, "'a\"", NOT_MET),
        ({"format": "date"}, "2020-01-31", MET),
        ({"format": "date"}, "yesterday", NOT_MET),
        ({"format": "no-such-format"}, "yesterday", MET),
        ({"multipleOf": 0.1}, 0.3, MET),
        ({"multipleOf": 0.1}, 0.35, NOT_MET),
        ({"minimum": 2, "exclusiveMinimum": True}, 2, NOT_MET),
        ({"maximum": 2, "exclusiveMaximum": True}, 1, MET),
        ({"exclusiveMaximum": 2}, 2, NOT_MET),
        ({"items": [{"type": "string"}], "additionalItems": False}, ["a"], MET),
        ({"items": [{"type": "string"}], "additionalItems": False}, ["a", 1], NOT_MET),
        ({"dependencies": {"a": ["b"]}}, {"a": 1}, NOT_MET),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "contains": {"const": 1}}, [2], NOT_MET),
        ({"patternProperties": {"^(?!a)": False}}, {"b": 1}, NOT_MET),
        ({"patternProperties": {"^(?!a)": {}}, "additionalProperties": False}, {"b": 1}, MET),
        ({"patternProperties": {r"^\p{L}$": {}}, "additionalProperties": False}, {"1": 1}, NOT_MET),
        ({"uniqueItems": True}, [1, True, 0, False], MET),
        (True, 1, MET),
        (False, 1, NOT_MET),
    ],
)
def test_verdicts(schema: Any, value: Any, state: SchemaState) -> None:
    assert CHECK.verdict(schema, json.dumps(value)).state is state


def test_a_reason_names_the_keyword_and_the_place_in_the_answer() -> None:
    schema = {"properties": {"tags": {"items": {"uniqueItems": True}}}}
    assert CHECK.verdict(schema, '{"tags": [[], [1, 1]]}').reason == "uniqueItems at #/tags/1"


@pytest.mark.parametrize("text", ["", "{", "[1] 2", "NaN", "[Infinity]", "{'a': 1}"])
def test_what_is_no_json_follows_no_schema(text: str) -> None:
    assert CHECK.verdict(True, text).state is NOT_MET


CLASSES = st.sampled_from(
    ["[a-c]", "[^b]", "[$]", r"[\]a]", "[[]", "[(?<a]", r"[\/]", "[^]", r"\/", r"\$", "(?:a|b)", "a?"]
)


@given(pieces=st.lists(CLASSES, min_size=1, max_size=4), text=st.text("abc$]/[(?<", max_size=6))
def test_expressions_mean_what_they_mean_in_the_other_notation(pieces: list[str], text: str) -> None:
    """Each piece is the same to Python if written as Python writes it."""
    as_python = {"[^]": r"[\s\S]", "[[]": r"\[", r"[\/]": "/", r"\/": "/", "[(?<a]": r"[(?<a]"}
    expected = (
        re.compile("^" + "".join(as_python.get(piece, piece) for piece in pieces) + r"\Z").search(text) is not None
    )
    assert PythonExpression(f"^{''.join(pieces)}$").found(text) == expected
