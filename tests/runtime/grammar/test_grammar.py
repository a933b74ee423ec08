# SPDX-License-Identifier: Apache-2.0
"""Masks have exactly the tokens that may come, after any output and however it is replayed."""

import json
import random
from collections.abc import Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llama import END_ID
from walks import SCHEMAS, allowed, walk

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar import MAX_GRAMMAR_CHARACTERS, Grammar, GrammarCompiler, check_grammar
from pontil.runtime.grammar.grammar_text import (
    Thought,
    behind_thought,
    grammar_of_choices,
    grammar_of_regex,
    grammar_of_rules,
    grammar_of_schema,
)
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

ENDS = frozenset({END_ID})
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def compiler(request: pytest.FixtureRequest) -> GrammarCompiler:
    """A compiler over bytes, and one over tokens that cross the boundaries in a grammar; a model may have ids without a
    token."""
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + 70)


def is_date(text: object) -> bool:
    """A regular expression cannot tell leap years: to it each year has a 29th of February."""
    return not isinstance(text, str) or bool(date.fromisoformat(f"2000{text[4:]}"))


FORMATS = jsonschema.FormatChecker()
FORMATS.checks("date", raises=ValueError)(is_date)


def test_nothing_encodes_for_the_tables(smollm2_path: Path) -> None:
    tokenizer = load_tokenizer(smollm2_path, encodes=False)
    made = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    assert not made.is_prepared
    assert allowed(made.compile(grammar_of_choices(["ab"])).guide(ENDS).masks([])[0])
    assert made.is_prepared and "backend" not in tokenizer.__dict__


def accepts(compiler: GrammarCompiler, grammar: Grammar, text: str) -> bool:
    """Return whether the text, as the tokenizer splits it, is allowed and may end there."""
    guide, ids = grammar.guide(ENDS), compiler.tokenizer.encode(text, False)
    return guide.fitting([], ids) == len(ids) and END_ID in allowed(guide.masks(ids)[0])


@settings(max_examples=examples(20, 60), deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 1 << 32))
def test_whatever_the_masks_allow_is_valid(compiler: GrammarCompiler, schema: dict[str, Any], seed: int) -> None:
    try:
        grammar = compiler.compile(grammar_of_schema(schema))
    except RequestError as refused:
        assert "cannot be used" in str(refused)
        return
    output, ended = walk(grammar, END_ID, random.Random(seed), 400)
    if ended:
        text = compiler.tokenizer.decode(output)
        jsonschema.validate(json.loads(text), schema, format_checker=FORMATS)


@cache
def pieces_of(tokenizer: Tokenizer) -> list[tuple[int, bytes]]:
    """Return the tokens that have bytes, with these."""
    ids = (token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_ids)
    return [(token, piece) for token in ids if (piece := tokenizer.token_bytes(token))]


@settings(max_examples=examples(20, 60), deadline=None)
@given(choices=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=5, unique=True), cut=st.integers(0, 8))
def test_choices_are_those_texts_to_the_byte(compiler: GrammarCompiler, choices: list[str], cut: int) -> None:
    """The mask has exactly the tokens that keep the text a prefix of a choice."""
    tokenizer = compiler.tokenizer
    texts = [choice.encode() for choice in choices]
    grammar = compiler.compile(grammar_of_choices(choices))
    output = tokenizer.encode(choices[0], False)[:cut]
    said = b"".join(map(tokenizer.token_bytes, output))
    expected = [token for token, piece in pieces_of(tokenizer) if any(text.startswith(said + piece) for text in texts)]
    if said in texts:
        expected.append(END_ID)
    assert allowed(grammar.guide(ENDS).masks(output)[0]) == sorted(expected)


GRAMMARS = [
    grammar_of_schema(PERSON), grammar_of_schema({"type": "object"}), grammar_of_choices(["yes", "no", "yesterday"]),
    grammar_of_regex(r"[a-z]+(/\d{2,4})?"), grammar_of_rules('start: ("ab" | "cd" start "é")+'),
]  # fmt: skip


@settings(max_examples=examples(6, 40), deadline=None)
@given(number=st.integers(0, len(GRAMMARS) - 1), seed=st.integers(0, 99), cuts=st.lists(st.integers(0, 60)))
def test_replayed_at_once_or_bit_by_bit_masks_are_equal(
    compiler: GrammarCompiler, number: int, seed: int, cuts: list[int]
) -> None:  # C16
    """The state is a function of grammar and tokens: a new guide, a second compiler and drafts all agree."""
    grammar = compiler.compile(GRAMMARS[number])
    output, _ = walk(grammar, END_ID, random.Random(seed), 60)
    again = GrammarCompiler(compiler.tokenizer, compiler.vocab_size).compile(GRAMMARS[number])
    steady = grammar.guide(ENDS)
    for cut in sorted({*(min(cut, len(output)) for cut in cuts), len(output)}):
        expected = again.guide(ENDS).masks(output[:cut])
        assert grammar.guide(ENDS).masks(output[:cut]) == steady.masks(output[:cut]) == expected
        ahead = output[cut : cut + 5]
        behind = [again.guide(ENDS).masks(output[: cut + count])[0] for count in range(len(ahead) + 1)]
        assert steady.masks(output[:cut], ahead) == behind and steady.fitting(output[:cut], ahead) == len(ahead)
        assert steady.masks(output[:cut]) == expected, "drafts leave nothing behind"


def test_drafts_are_cut_where_they_may_not_come(compiler: GrammarCompiler) -> None:
    guide = compiler.compile(grammar_of_choices(["abc", "abd"])).guide(ENDS)
    a, b, c, x = (compiler.tokenizer.encode(one, False)[0] for one in "abcx")
    assert guide.fitting([a], [b, c, END_ID]) == 2 and guide.fitting([a], [b, x, c]) == 1
    first, second, third, fourth = guide.masks([a], [b, x, c])
    assert b in allowed(first) and c in allowed(second) and not allowed(third) and not allowed(fourth)
    assert guide.fitting([a, b, c], [x]) == 0 and allowed(guide.masks([a, b, c])[0]) == [END_ID]
    assert guide.masks([a], [b, c, x])[2] == guide.masks([a, b, c])[0]
    assert guide.failure is None


def test_tokens_that_do_not_follow_are_said_to(compiler: GrammarCompiler) -> None:
    guide = compiler.compile(grammar_of_choices(["abc"])).guide(ENDS)
    ids = [compiler.tokenizer.encode(one, False)[0] for one in "ax"]
    assert allowed(guide.masks(ids)[0]) == [] and guide.failure and "followed" in guide.failure
    assert guide.fitting(ids, ids) == 0
    assert allowed(guide.masks(ids[:1])[0]) and guide.failure is None, "and it is no worse for it"


@pytest.mark.parametrize(
    "text", ['{"name": "Ada", "age": 36}', '{"name":"Ada","age":36}', '{\n  "name": "Ada",\n  "age": 36\n}']
)
def test_json_may_be_written_as_people_do(compiler: GrammarCompiler, text: str) -> None:
    assert accepts(compiler, compiler.compile(grammar_of_schema(PERSON)), text)


def test_white_space_has_an_end(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(grammar_of_schema(PERSON))
    guide, space = grammar.guide(ENDS), compiler.tokenizer.encode(" ", False)
    begun = compiler.tokenizer.encode("{", False)
    assert guide.fitting(begun, space * 9) < 9
    assert guide.fitting(begun, compiler.tokenizer.encode("\n" + 40 * " ", False)) < 41


@pytest.mark.parametrize(
    ("rules", "good", "bad"),
    [
        ('start: "a" /[0-9]+/', "a12", "b12"),
        ('root ::= "a" [0-9]+', "a12", "12"),
        ('root ::= item ("," item)*\nitem ::= "x" | "y"', "x,y,x", "x,,y"),
        ('%llguidance {}\nstart: "q"', "q", "r"),
    ],
)
def test_rules_in_both_notations(compiler: GrammarCompiler, rules: str, good: str, bad: str) -> None:
    grammar = compiler.compile(grammar_of_rules(rules))
    assert accepts(compiler, grammar, good) and not accepts(compiler, grammar, bad)


NUMBER = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("form", "fits", "odd"),
    [
        (grammar_of_schema(NUMBER), '{"x": 5}', "{}"),
        (grammar_of_choices(["yes", "no"]), "no", "yesno"),
        (grammar_of_regex("a+b"), "aab", "a"),
    ],
)
def test_reasoning_before_any_form(compiler: GrammarCompiler, form: str, fits: str, odd: str) -> None:
    assert behind_thought(form, Thought.NONE) == form
    begun = compiler.compile(behind_thought(form, Thought.BEGUN))
    possible = compiler.compile(behind_thought(form, Thought.POSSIBLE))
    assert accepts(compiler, begun, f"hm\n</think>\n\n{fits}") and not accepts(compiler, begun, fits)
    assert accepts(compiler, possible, f"<think>hm</think>{fits}") and accepts(compiler, possible, fits)
    for text in (odd, f"hm</think>{fits}", f"<think>hm</think>{odd}", f"<think>{fits}"):
        assert not accepts(compiler, possible, text), text


BAD: list[tuple[Any, Any]] = [
    (grammar_of_schema, {"type": "thing"}),
    (grammar_of_schema, {"type": "string", "minLength": "a"}),
    (grammar_of_schema, {"$ref": "http://example.com/schema"}),
    (grammar_of_schema, {"type": "string", "pattern": "(?=a)"}),
    (grammar_of_schema, {"type": "string", "format": "no-such-format"}),
    (grammar_of_schema, {"not": {"type": "string"}}),
    (grammar_of_schema, {"type": "integer", "minimum": 5, "maximum": 4}),
    (grammar_of_regex, "(a"),
    (grammar_of_regex, "(?<=a)b"),
    (grammar_of_rules, "start: other"),
    (grammar_of_rules, "nothing here"),
    (grammar_of_rules, "start: <|no such token|>"),
    (grammar_of_rules, "root ::= (a"),
    (grammar_of_rules, "root ::= missing"),
    (grammar_of_rules, "item ::= 5"),
    (grammar_of_rules, "root ::= " + "(" * 5000),
    (grammar_of_rules, "root ::= " + '"a" ' * 5000),
    (grammar_of_schema, {"type": "string", "x-guidance": {"lenient": True}}),
]


@pytest.mark.parametrize(("write", "asked"), BAD)
def test_what_cannot_be_used_is_refused_in_a_sentence(compiler: GrammarCompiler, write: Any, asked: Any) -> None:
    with pytest.raises(RequestError) as refused:
        compiler.compile(write(asked))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    with pytest.raises(RequestError) as checked:
        check_grammar(write(asked))
    assert str(checked.value) == str(refused.value), "without a vocabulary too"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}, "additionalProperties": False}
    return schema


# Grammars that are made to be expensive: as texts, since some are too large for a realistic schema.
COSTLY: Sequence[str] = [
    grammar_of_regex("(a{1,1000}){1,1000}"),
    grammar_of_regex("((a|b)*c(a|b){12}){30}"),
    grammar_of_regex("(.*a.*b.*c.*){20}"),
    grammar_of_regex("(\\p{L}{0,500}\\d){1,500}"),
    grammar_of_schema(nested(10)),
    grammar_of_schema({"type": "string", "maxLength": 10_000_000}),
    grammar_of_schema({"enum": [f"value {number}" for number in range(5000)]}),
    grammar_of_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1000)}}),
    grammar_of_schema({"type": "array", "items": {"type": "integer"}, "minItems": 100_000, "maxItems": 200_000}),
    grammar_of_rules('start: a a a a a a a a\na: b b b b b b\nb: c? c? c? c? c?\nc: "x" | "xx" | c c'),
    "a" * (MAX_GRAMMAR_CHARACTERS + 1),
]


@pytest.mark.parametrize("number", range(len(COSTLY)))
def test_what_is_made_to_cost_is_refused_or_given_up(compiler: GrammarCompiler, number: int) -> None:
    """No hang and no crash: the grammar is refused, or used, or given up with a reason."""
    try:
        grammar = compiler.compile(COSTLY[number])
    except RequestError as refused:
        assert "\n" not in str(refused)
        return
    guide, output, dice = grammar.guide(ENDS), list[int](), random.Random(number)
    while len(output) < 100:
        may = allowed(guide.masks(output)[0])
        if not may:
            assert guide.failure
            return
        if may == [END_ID]:
            return
        output.append(dice.choice([token for token in may if token != END_ID]))


def test_ids_without_a_token_may_never_come(compiler: GrammarCompiler) -> None:
    (mask,) = compiler.compile(grammar_of_regex("(?s:.*)")).guide(ENDS).masks([])
    assert len(mask) == 4 * -(-compiler.vocab_size // 32) and max(allowed(mask)) < compiler.tokenizer.vocab_size
    assert not set(allowed(mask)) & (compiler.tokenizer.special_ids - ENDS)
