# SPDX-License-Identifier: Apache-2.0
"""A JSON text ends before its budget does, the same wherever it is computed."""

import json
import random
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llama import END_ID
from walks import allowed

from pontil.runtime.grammar.closing import SLACK, WATCHED
from pontil.runtime.grammar.grammar import GrammarCompiler
from pontil.runtime.grammar.grammar_text import (
    Thought,
    behind_thought,
    bounded_object,
    grammar_of_choices,
    grammar_of_regex,
    grammar_of_schema,
)
from pontil.runtime.tokenizer.tokenizer import Tokenizer

ENDS = frozenset({END_ID})
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "first name": {"type": "string", "minLength": 3}, "kind": {"enum": ["small", "large"]},
        "age": {"type": "integer", "minimum": 10}, "height": {"type": "number"}, "alive": {"type": "boolean"},
        "born": {"type": ["string", "null"], "pattern": "^[0-9]{4}$"},
    },
    "required": ["first name", "kind", "age", "height", "alive"],
    "additionalProperties": False,
}  # fmt: skip
PEOPLE: dict[str, Any] = {
    "type": "object",
    "properties": {"people": {"type": "array", "items": PERSON}, "best": PERSON, "ok": {"type": "boolean"}},
    "required": ["people", "ok"],
    "additionalProperties": False,
}
SCHEMAS: tuple[dict[str, Any], ...] = (bounded_object(), PERSON, PEOPLE, {"type": "array", "minItems": 2})


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def compiler(request: pytest.FixtureRequest) -> GrammarCompiler:
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return GrammarCompiler(tokenizer, tokenizer.vocab_size)


def drawn(compiler: GrammarCompiler, grammar: str, budget: int, seed: int) -> list[int]:
    """Return an output of random tokens. Parts are opened far more often than a model would."""
    guide, source, output = compiler.compile(grammar).guide(ENDS, budget), random.Random(seed), list[int]()
    while len(output) < budget and END_ID not in output:
        possible = allowed(guide.masks(output)[0])
        opening = [token for token in possible if any(one in compiler.tokenizer.token_bytes(token) for one in b'{[,":')]
        output.append(source.choice(opening if opening and source.random() < 0.7 else possible))
    return output


def text_of(compiler: GrammarCompiler, output: list[int]) -> str:
    return compiler.tokenizer.decode([token for token in output if token != END_ID])


@settings(max_examples=examples(3, 8), deadline=None)
@given(number=st.integers(0, len(SCHEMAS) - 1), seed=st.integers(0, 10**6), more=st.integers(0, 90))
def test_an_answer_that_can_end_in_time_is_whole(compiler: GrammarCompiler, number: int, seed: int, more: int) -> None:
    grammar = grammar_of_schema(SCHEMAS[number])
    least = len(compiler.tables.closing.way(compiler.compile(grammar).beginning) or ())
    output = drawn(compiler, grammar, least + more, seed)
    json.loads(text_of(compiler, output))
    guide = compiler.compile(grammar).guide(ENDS, least + more)
    for count in range(0, len(output), 3):  # the same by a guide that starts anywhere, and behind drafts
        masks = compiler.compile(grammar).guide(ENDS, least + more).masks(output[:count], output[count : count + 2])
        assert masks[0] == guide.masks(output[:count])[0] and output[count] in allowed(masks[0])
        if count + 1 < len(output) and output[count] != END_ID:
            assert masks[1] == guide.masks(output[: count + 1])[0]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_without_a_shortage_nothing_is_narrowed(compiler: GrammarCompiler, schema: dict[str, Any]) -> None:
    grammar = compiler.compile(grammar_of_schema(schema))
    way = compiler.tables.closing.way(grammar.beginning)
    assert way is not None
    (free,), ample = grammar.guide(ENDS).masks([]), len(way) + SLACK + WATCHED + 1
    assert grammar.guide(ENDS, ample).masks([]) == [free]
    assert grammar.guide(ENDS, len(way) - 1).masks([]) == [free], "it cannot end in any case"
    assert allowed(grammar.guide(ENDS, len(way) + SLACK).masks([])[0]) == way[:1]


@pytest.mark.parametrize(
    ("begun", "rest"),
    [
        ("", "{}"), ('{"', '":""}'), ('{"a": "x', '"}'), ('{"a": "x\\', '""}'), ('{"a": tr', "ue}"), ('{"a": 1.', "0}"),
        ('{"a": [1, {"b": [2', "]}]}"), ('{"a": 1,', '"":""}'), ('{"a": "\\u00', '00"}'),
    ],
)  # fmt: skip
def test_the_way_is_short(compiler: GrammarCompiler, begun: str, rest: str) -> None:
    matcher = compiler.compile(grammar_of_schema(bounded_object())).beginning.deep_copy()
    assert matcher.consume_tokens(compiler.tokenizer.encode(begun, False)) or not begun
    way = compiler.tables.closing.way(matcher)
    assert way is not None and compiler.tokenizer.decode(way) == rest


def test_a_character_that_was_begun_is_completed(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(grammar_of_schema(bounded_object())).beginning.deep_copy()
    letters = [compiler.tables.closing.letters[byte] for byte in b'{"a": "\xf0\x9f']
    assert matcher.consume_tokens(letters)
    way = compiler.tables.closing.way(matcher)
    assert way is not None and json.loads(compiler.tokenizer.decode([*letters, *way]))["a"]


def test_an_end_for_the_budgets_sake_is_told_apart(compiler: GrammarCompiler) -> None:
    guide = compiler.compile(grammar_of_schema(bounded_object())).guide(ENDS, 20)
    assert [count for count in range(1, 21) if guide.is_cut(count)] == list(range(20 - SLACK + 1, 21))
    assert not compiler.compile(grammar_of_schema(bounded_object())).guide(ENDS).is_cut(20)


@pytest.mark.parametrize("grammar", [grammar_of_regex("[a-z]*"), grammar_of_choices(["abc", "de"])])
def test_other_grammars_know_no_budget(compiler: GrammarCompiler, grammar: str) -> None:
    made = compiler.compile(grammar)
    assert made.guide(ENDS, 1).masks([]) == made.guide(ENDS).masks([]) and not made.guide(ENDS, 1).is_cut(1)


def test_reasoning_is_not_closed_and_what_is_behind_it_is(compiler: GrammarCompiler) -> None:
    made = compiler.compile(behind_thought(grammar_of_schema(bounded_object()), Thought.BEGUN))
    thought = compiler.tokenizer.encode("hm", False)
    assert made.guide(ENDS, 6).masks(thought) == made.guide(ENDS).masks(thought)
    begun = compiler.tokenizer.encode('hm</think>{"a": "b', False)
    (mask,) = made.guide(ENDS, len(begun) + 4).masks(begun)
    assert len(allowed(mask)) == 1


def test_a_pattern_to_which_no_short_way_is_known_is_left_alone(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"mail": {"type": "string", "pattern": "^[a-z]+@[a-z]+$"}}}
    made = compiler.compile(grammar_of_schema(schema | {"required": ["mail"]}))
    assert compiler.tables.closing.way(made.beginning) is None and made.guide(ENDS, 9).masks([]) == made.guide(
        ENDS
    ).masks([])
