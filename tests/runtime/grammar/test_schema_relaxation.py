# SPDX-License-Identifier: Apache-2.0
"""A relaxed schema allows what the schema allows, is held by a grammar, and its check tells what it does not hold."""

import json
import random
from typing import Any

import jsonschema
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from library_schemas import SCHEMAS, LibrarySchema
from tiny_llama import END_ID
from walks import walk

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.byte_matcher import ByteMatcher, byte_words
from pontil.runtime.grammar.grammar import GrammarCompiler
from pontil.runtime.grammar.grammar_text import grammar_of_schema
from pontil.runtime.grammar.processes.answer_check import AnswerCheck
from pontil.runtime.grammar.processes.compile_child import is_held, relaxed
from pontil.runtime.grammar.processes.verdict import SchemaState
from pontil.runtime.grammar.schema_place import named, target
from pontil.runtime.grammar.schema_relaxation import (
    MOST_ASKED,
    UNHELD,
    SchemaRelaxation,
    choices_in,
    coerced,
    described,
)
from pontil.runtime.tokenizer.tokenizer import Tokenizer

WORDS = byte_words()
CHECK = AnswerCheck()


@pytest.fixture(scope="module")
def compiler(tiny: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tiny, tiny.vocab_size)


def relaxed_grammar(schema: Any) -> tuple[str, str]:
    """The grammar of a schema and what it leaves out, which is nothing where the schema is held as it is."""
    if is_held(schema):
        return grammar_of_schema(schema), ""
    found = relaxed(schema, WORDS)
    assert "reason" not in found, found
    return grammar_of_schema(json.loads(found["schema"])), found["left_out"]


@pytest.mark.parametrize("one", [one for one in SCHEMAS if one.schema is not True], ids=lambda one: one.name)
def test_relaxed_grammars_of_libraries(one: LibrarySchema) -> None:
    grammar, left_out = relaxed_grammar(one.schema)
    matcher = ByteMatcher(grammar, WORDS)
    assert matcher.matches(json.dumps(one.good))
    assert CHECK.verdict(one.schema, json.dumps(one.good)).state is SchemaState.MET
    assert bool(left_out) or one.bad is None
    if one.bad is not None:
        assert matcher.matches(json.dumps(one.bad)), "what is told is what the grammar allows"
        assert CHECK.verdict(one.schema, json.dumps(one.bad)).state is SchemaState.NOT_MET


@pytest.mark.parametrize("keyword", UNHELD)
def test_every_keyword_in_the_table_is_one_that_the_library_refuses(keyword: str) -> None:
    values: dict[str, Any] = {"uniqueItems": True, "dependentRequired": {"a": ["b"]}, "$dynamicRef": "#", "not": {}}
    assert not is_held({keyword: values.get(keyword, {"a": {}})})


SMALL = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab", "b1"])
VALUES = st.recursive(
    SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)
LEAVES = st.sampled_from([
    True, {}, {"type": "integer"}, {"type": "string"}, {"enum": [1, "a", None]}, {"type": "array"}, {"type": "object"},
    {"type": "string", "pattern": "^(?!a)"}, {"type": "string", "pattern": "a"}, {"type": "integer", "minimum": 1},
    {"not": {}}, {"type": "string", "format": "binary"},
])  # fmt: skip


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(inner, min_size=1, max_size=2)
    by_name = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    return st.one_of(
        inner.map(lambda one: {"not": one}),
        st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner}),
        few.map(lambda some: {"oneOf": some}),
        few.map(lambda some: {"anyOf": some}),
        inner.map(lambda one: {"type": "array", "items": one, "uniqueItems": True}),
        inner.map(lambda one: {"type": "array", "contains": one, "minContains": 2}),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": by_name},
            optional={"additionalProperties": inner, "unevaluatedProperties": inner},
        ),
        st.fixed_dictionaries(
            {"type": st.just("object"), "patternProperties": inner.map(lambda one: {"^(?=a)": one, "b": one})},
            optional={"additionalProperties": inner},
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "propertyNames": st.sampled_from([{"enum": ["a"]}, {"pattern": "^a"}, {"maxLength": 0}]),
            },
            optional={"additionalProperties": inner},
        ),
        st.just({"type": "object", "dependentRequired": {"a": ["b"]}}),
    )


WILD = st.recursive(LEAVES, combined, max_leaves=6)


@settings(max_examples=examples(60, 300), deadline=None)
@given(schema=WILD, value=VALUES)
def test_what_the_schema_allows_the_relaxed_one_allows(schema: Any, value: Any) -> None:
    if not isinstance(schema, dict) or not jsonschema.Draft202012Validator(schema).is_valid(value):
        return
    made = SchemaRelaxation(schema, is_held).schema
    whole = coerced(made, choices_in(made))
    assert jsonschema.Draft202012Validator(whole).is_valid(value), (schema, made)


@settings(max_examples=examples(60, 300), deadline=None)
@given(schema=WILD, value=VALUES)
def test_a_schema_of_which_nothing_was_left_out_means_the_same(schema: Any, value: Any) -> None:
    if not isinstance(schema, dict):
        return
    made = SchemaRelaxation(schema, is_held)
    if not made.left_out:
        says = jsonschema.Draft202012Validator(schema).is_valid(value)
        assert jsonschema.Draft202012Validator(made.schema).is_valid(value) == says, (schema, made.schema)


@settings(max_examples=examples(30, 150), deadline=None)
@given(schema=WILD, seed=st.integers(0, 1 << 32))
def test_what_the_masks_allow_is_valid_or_told(compiler: GrammarCompiler, schema: Any, seed: int) -> None:
    """Draw answers from the masks of the relaxed grammar: each follows the schema, or its check says that it does
    not."""
    if not isinstance(schema, dict):
        return
    try:
        found = {"schema": json.dumps(schema), "left_out": ""} if is_held(schema) else relaxed(schema, WORDS)
        if "reason" in found:
            return
        grammar = compiler.compile(grammar_of_schema(json.loads(found["schema"])))
    except RequestError:
        return
    output, ended = walk(grammar, END_ID, random.Random(seed), 200)
    if ended:
        text = compiler.tokenizer.decode(output)
        is_valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        assert is_valid or found["left_out"], (schema, text)
        assert CHECK.verdict(schema, text).state is (SchemaState.MET if is_valid else SchemaState.NOT_MET)


def test_a_reference_to_what_was_left_out_goes_with_it() -> None:
    schema = {"properties": {"a": {"not": {"type": "string"}}, "b": {"$ref": "#/properties/a/not"}}}
    made = SchemaRelaxation(schema, is_held)
    assert made.schema == {"properties": {"a": {}, "b": {}}}
    assert [described(place) for place in made.left_out] == ["not at #/properties/a", "$ref at #/properties/b"]


def test_only_the_choices_that_overlap_are_left_out() -> None:
    apart = {"oneOf": [{"type": "integer"}, {"type": "string"}]}
    schema = {"properties": {"a": apart, "b": {"oneOf": [{"minimum": 1}, {"maximum": 3}], "anyOf": [{}]}}}
    found = relaxed(schema, WORDS)
    assert found["left_out"] == "oneOf at #/properties/b" and json.dumps(apart) in found["schema"]


def test_places_are_json_pointers() -> None:
    assert named(("a/b", "~", "0")) == "#/a~1b/~0/0" and len(named(("x" * 500,))) < 130
    root = {"a/b": [{"~": 1}]}
    assert target(root, "#/a~1b/0/~0") == 1 and target(root, "#") is root
    assert all(target(root, other) is None for other in ("#/a", "#/a~1b/1", "#/a~1b/x", "http://a/b#/a", "#anchor"))


def test_trials_have_an_end() -> None:
    asked: list[Any] = []

    def holds(schema: Any) -> bool:
        asked.append(schema)
        return True

    schema = {"properties": {f"p{n}": {"type": "string", "pattern": f"a{n}"} for n in range(2 * MOST_ASKED)}}
    made = SchemaRelaxation(schema, holds)
    assert len(asked) == MOST_ASKED == len(made.left_out)
    assert made.left_out[0] == ("properties", f"p{MOST_ASKED}", "pattern"), "the rest is checked at the answer's end"


def test_a_schema_is_not_copied_without_an_end() -> None:
    names = {"enum": [f"name {number}" for number in range(3000)]}
    large = {"type": "object", "propertyNames": names, "additionalProperties": {"enum": ["x" * 9000]}}
    made = SchemaRelaxation(large, is_held)
    assert len(json.dumps(made.schema)) < len(json.dumps(large)) and made.left_out == [("propertyNames",)]
    few = large | {"propertyNames": {"enum": ["a", "b"]}}
    assert SchemaRelaxation(few, is_held).schema["properties"].keys() == {"a", "b"}
