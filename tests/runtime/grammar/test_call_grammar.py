# SPDX-License-Identifier: Apache-2.0
"""Grammars of calls take what was asked for and nothing else, also behind reasoning and in a text."""

from dataclasses import replace
from typing import Any

import pytest
from tiny_llama import END_ID
from walks import allowed

from pontil.runtime.grammar.call_grammar import (
    CallFrame,
    CallText,
    grammar_of_calls,
    grammar_of_calls_in_text,
    grammar_of_calls_or_text,
)
from pontil.runtime.grammar.grammar import Grammar, GrammarCompiler
from pontil.runtime.grammar.grammar_text import Thought, json_part
from pontil.runtime.tokenizer.tokenizer import Tokenizer

ENDS = frozenset({END_ID})
NUMBER = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}, "additionalProperties": False}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
CALLS = [
    CallText('<tool>{"name": "add", "arguments": ', json_part(NUMBER), "}</tool>"),
    CallText('<tool>{"name": "noop", "arguments": ', json_part(NOTHING), "}</tool>"),
]
ONE, SEVERAL, OPENINGS = CallFrame(), CallFrame(between="\n"), ["<tool>"]
ADD, NOOP = '<tool>{"name": "add", "arguments": {"x": 5}}</tool>', '<tool>{"name": "noop", "arguments": {}}</tool>'


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def compiler(request: pytest.FixtureRequest) -> GrammarCompiler:
    """A compiler over bytes, and one over tokens that cross the boundaries in a grammar; a model may have ids without a
    token."""
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + 70)


def accepts(compiler: GrammarCompiler, grammar: Grammar, text: str) -> bool:
    """Return whether the text, as the tokenizer splits it, is allowed and may end there."""
    guide, ids = grammar.guide(ENDS), compiler.tokenizer.encode(text, False)
    return guide.fitting([], ids) == len(ids) and END_ID in allowed(guide.masks(ids)[0])


def test_calls_alone(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(grammar_of_calls(CALLS, ONE))
    assert accepts(compiler, grammar, ADD) and accepts(compiler, grammar, NOOP)
    for text in ("", "well", ADD + NOOP, "a" + ADD, ADD.replace("add", "mul"), ADD.replace("x", "y")):
        assert not accepts(compiler, grammar, text), text


def test_several_calls(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(grammar_of_calls(CALLS, CallFrame(between=";\n")))
    for text in (ADD, f"{ADD};\n{NOOP};\n{ADD}"):
        assert accepts(compiler, grammar, text), text
    for text in ("", ADD + NOOP, f"{ADD};\n", f"<think>hm</think>{ADD}"):
        assert not accepts(compiler, grammar, text), text


def test_reasoning_before_calls(compiler: GrammarCompiler) -> None:
    begun = compiler.compile(grammar_of_calls(CALLS, ONE, thought=Thought.BEGUN))
    possible = compiler.compile(grammar_of_calls(CALLS, ONE, thought=Thought.POSSIBLE))
    thought = f"I may write <tool> here.\n</think>\n\n{ADD}"
    assert accepts(compiler, begun, thought) and not accepts(compiler, begun, ADD)
    assert accepts(compiler, possible, f"<think>\n{thought}") and accepts(compiler, possible, ADD)
    for text in (thought, f"<think>{ADD}", f"<think>hm</think>so{ADD}", "<think>hm</think>"):
        assert not accepts(compiler, possible, text), text


def test_calls_in_a_text(compiler: GrammarCompiler) -> None:
    several = compiler.compile(grammar_of_calls_in_text(CALLS, SEVERAL, OPENINGS, Thought.NONE))
    one = compiler.compile(grammar_of_calls_in_text(CALLS, ONE, OPENINGS, Thought.NONE))
    for text in ("", "well < then", ADD, f"I add.\n{ADD} and more </tool>"):
        assert accepts(compiler, several, text) and accepts(compiler, one, text), text
    for text in (f"I add.\n{ADD} and {NOOP}", f"{NOOP}{ADD}done"):
        assert accepts(compiler, several, text) and not accepts(compiler, one, text), text
    for text in ("a <tool> is", ADD.replace("add", "mul"), f"I add. {ADD[:-2]}"):
        assert not accepts(compiler, several, text) and not accepts(compiler, one, text), text


def test_a_frame_around_calls(compiler: GrammarCompiler) -> None:
    """Text around all calls is there once, in a text and alone."""
    calls = [replace(call, begin=call.begin.replace("<tool>", "<call>")) for call in CALLS]
    add = ADD.replace("<tool>", "<call>")
    frame, openings = CallFrame("<calls>", "", "</calls>"), ["<calls>", "<call>"]
    alone = compiler.compile(grammar_of_calls(calls, frame))
    text = compiler.compile(grammar_of_calls_in_text(calls, frame, openings, Thought.NONE))
    one = compiler.compile(grammar_of_calls_in_text(calls, replace(frame, between=None), openings, Thought.NONE))
    for good in (f"<calls>{add}</calls>", f"<calls>{add}{add}</calls>"):
        assert accepts(compiler, alone, good) and accepts(compiler, text, f"so {good} well"), good
    assert accepts(compiler, text, "well") and not accepts(compiler, alone, "well")
    assert accepts(compiler, one, f"<calls>{add}</calls>") and not accepts(compiler, one, f"<calls>{add}{add}</calls>")
    for bad in (f"so {add}", f"<calls>{add}", f"<calls></calls>{add}"):
        assert not accepts(compiler, text, bad) and not accepts(compiler, one, bad), bad


def test_calls_or_a_text(compiler: GrammarCompiler) -> None:
    bare = [replace(call, begin=call.begin.removeprefix("<tool>"), end="}") for call in CALLS]
    add, noop = (call.removeprefix("<tool>").removesuffix("</tool>") for call in (ADD, NOOP))
    several, one = (
        compiler.compile(grammar_of_calls_or_text(bare, CallFrame(between=between), ["<tag>"], Thought.NONE))
        for between in ("; ", None)
    )
    for text in ("", "well", f"  I say {add}", add, noop):
        assert accepts(compiler, several, text) and accepts(compiler, one, text), text
    assert accepts(compiler, several, f"{add}; {noop}") and not accepts(compiler, one, f"{add}; {noop}")
    for text in ('{"a": 1}', " {", f"<tag>{add}", add[:-1], f"{add} well"):
        assert not accepts(compiler, several, text) and not accepts(compiler, one, text), text


@pytest.mark.parametrize("thought", [Thought.POSSIBLE, Thought.BEGUN])
def test_calls_in_a_text_behind_reasoning(compiler: GrammarCompiler, thought: Thought) -> None:
    """Reasoning is never a call, even if it looks like one; the text behind it is kept."""
    bare = [replace(call, begin=call.begin.removeprefix("<tool>"), end="}") for call in CALLS]
    add = ADD.removeprefix("<tool>").removesuffix("</tool>")
    begin = "<think>" if thought is Thought.POSSIBLE else ""
    before = f"{begin}\nI write <tool> or {add}?\n</think>\n\n"
    marked = compiler.compile(grammar_of_calls_in_text(CALLS, ONE, OPENINGS, thought))
    unmarked = compiler.compile(grammar_of_calls_or_text(bare, ONE, [], thought))
    for grammar, call in ((marked, ADD), (unmarked, add)):
        for text in (before, f"{before}well", f"{before}{call}", *(["well", call] if begin else [])):
            assert accepts(compiler, grammar, text), text
        for text in (f"{before}{call.replace('5', '[]')}", f"{before}{call[:-1]}", f"{begin} hm"):
            assert not accepts(compiler, grammar, text), text
