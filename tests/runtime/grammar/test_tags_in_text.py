# SPDX-License-Identifier: Apache-2.0
"""Structure between tags in free text."""

import pytest
from llguidance import LLMatcher

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.byte_matcher import byte_words
from pontil.runtime.grammar.grammar import LIMITS, SILENT
from pontil.runtime.grammar.grammar_text import Thought, behind_thought, is_json
from pontil.runtime.grammar.tag_grammar import (
    FixedText,
    FreeText,
    InTurn,
    JsonValue,
    OneOfFormats,
    TagFormat,
    Tagged,
    TriggeredTags,
    grammar_of_format,
)

SCHEMA = {
    "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False,
}  # fmt: skip
TAGS = (
    Tagged("<f=a>", JsonValue(SCHEMA), "</f>"), Tagged("<f=b>", JsonValue({"type": "boolean"}), "</f>"),
    Tagged("<g>", JsonValue({"type": "integer"})),
)  # fmt: skip
GRAMMAR = grammar_of_format(TriggeredTags(("<f=", "<g>", "<f=b"), TAGS))


def follows(grammar: str, text: str) -> bool:
    """Return whether the whole text follows the grammar."""
    matcher = LLMatcher(byte_words(), grammar, log_level=SILENT, limits=LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


@pytest.mark.parametrize("text", [
    "", "hi", "a <f and <b>", '<f=a>{"x":1}</f>', "<g>7", 'one <f=a>{"x":1}</f> two <g>3 <f=b>true</f>',
])  # fmt: skip
def test_text_and_tags_follow(text: str) -> None:
    assert follows(GRAMMAR, text)
    assert follows(behind_thought(GRAMMAR, Thought.POSSIBLE), f"<think>so</think>{text}")


@pytest.mark.parametrize("text", ['<f=a>{"y":1}</f>', "<f=c>", "x <g>a", '<f=a>{"x":1}', "<f=b>1</f>"])
def test_a_trigger_begins_a_tag_and_nothing_else(text: str) -> None:
    assert not follows(GRAMMAR, text)


ANY, A, NUMBER = FreeText(), FixedText("a"), JsonValue({"type": "integer"})
NOTE = Tagged("[n]", ANY, "[/n]")


@pytest.mark.parametrize(("wanted", "right", "wrong"), [
    (A, ["a"], ["", "aa", "b"]),
    (ANY, ["", "x <t>"], []),
    (InTurn((A, NUMBER, A)), ["a1a", "a-23a"], ["a1", "aa", "a1ab"]),
    (InTurn((A, ANY)), ["a", "abc"], ["", "b"]),
    (OneOfFormats((A, NUMBER, NOTE)), ["a", "7", "[n]x[/n]"], ["a7", "[n]x", ""]),
    (NOTE, ["[n][/n]", "[n]a[n][/[/n]"], ["[n]", "[n][/n][/n]", "[n][/n]x"]),
    (InTurn((NOTE, NUMBER)), ["[n]hm[/n]4"], ["4", "[n]hm[/n]", "[n]hm[/n]4[/n]"]),
    (Tagged("<", InTurn((A, ANY)), ">"), ["<a>", "<ab>"], ["<b>", "<a", "<a>>"]),
    (Tagged("<", OneOfFormats((ANY, A)), ">"), ["<>", "<ab>"], ["<a"]),
    (Tagged("<", Tagged("(", ANY, ""), ">"), ["<(>", "<(x>"], ["<(", "<x>"]),
    (InTurn((A, TriggeredTags(("[",), (NOTE,)))), ["a", "a b [n]x[/n] c [n][/n]"], ["", "a[", "a[n]"]),
    (TriggeredTags(("[",), (NOTE,), True), ["", "x", "x[n]y[/n]"], ["x[n]y[/n]z", "[", "[n]"]),
    (TriggeredTags(("<q",), (Tagged("<q>", OneOfFormats((A, NUMBER)), "</q>"),)), ["<q>a</q> <q>2</q>"], ["<q>b</q>"]),
], ids=str)  # fmt: skip
def test_formats_hold(wanted: TagFormat, right: list[str], wrong: list[str]) -> None:
    grammar = grammar_of_format(wanted)
    assert [text for text in right if not follows(grammar, text)] == []
    assert [text for text in wrong if follows(grammar, text)] == []
    thought = behind_thought(grammar, Thought.POSSIBLE)
    assert all(follows(thought, f"<think>so</think>{text}") for text in right)


@pytest.mark.parametrize(
    "wanted",
    [InTurn((ANY, A)), Tagged("<", TriggeredTags(("[",), (NOTE,)), ">"), InTurn((Tagged("<", ANY), A))],
    ids=str,
)
def test_free_text_without_an_end_is_refused(wanted: TagFormat) -> None:
    with pytest.raises(RequestError, match="may stand"):
        grammar_of_format(wanted)


def test_a_format_of_one_value_is_json() -> None:
    assert is_json(grammar_of_format(NUMBER)) and not is_json(grammar_of_format(InTurn((NUMBER, A))))
