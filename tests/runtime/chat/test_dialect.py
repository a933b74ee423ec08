# SPDX-License-Identifier: Apache-2.0
"""A model's notation of calls and reasoning is derived from its template and its vocabulary, unless it is
configured."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from chat_styles import STYLES
from tiny_llama import byte_level_tokenizer, tokenizer_config, write_json
from tokenizers import AddedToken

from pontil.runtime.chat.answer_part import Arguments, Call, Content, Reasoning
from pontil.runtime.chat.calls.format import FORMATS, HERMES, LLAMA3_JSON, MISTRAL, CallFormat
from pontil.runtime.chat.dialect import FALLBACK, Dialect, dialect_of
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from pontil.runtime.tokenizer.vocabulary import MARKERS as TEXT_MARKERS
from pontil.runtime.tokenizer.vocabulary import MESSAGE_MARKERS

F = {"f": None}
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def tokenizer_with(
    folder: Path, template: str | None = None, markers: Sequence[str] = (), special: bool = True
) -> Tokenizer:
    backend = byte_level_tokenizer()
    backend.add_tokens([AddedToken(marker, special=special, normalized=False) for marker in markers])
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config() | ({"chat_template": template} if template else {}))
    return load_tokenizer(folder)


@pytest.mark.parametrize(
    ("style", "calls", "thinks"),
    [("Llama 3", LLAMA3_JSON, False), ("Qwen 3", HERMES, True), ("Mistral", MISTRAL, False), ("Hermes", HERMES, False),
     ("Gemma", FALLBACK, False)],
)  # fmt: skip
def test_templates_tell(tmp_path: Path, style: str, calls: CallFormat, thinks: bool) -> None:
    tokenizer = tokenizer_with(tmp_path, STYLES[style])
    assert dialect_of(tokenizer) == Dialect(calls, thinks)
    assert dialect_of(tokenizer, "none", "none") == Dialect()
    assert dialect_of(tokenizer, "llama3_json", "think") == Dialect(LLAMA3_JSON, True)


# A line of a chat template of each family.
LINES = {
    "harmony": "<|start|>assistant<|channel|>final<|message|>{{ text }}<|end|>",
    "qwen3_coder": "<tool_call>\n<function={{ name }}>\n<parameter={{ key }}>",
    "glm45": "<tool_call>{{ name }}\n<arg_key>{{ key }}</arg_key>",
    "deepseek_v3": "<｜tool▁call▁begin｜>{{ type }}<｜tool▁sep｜>{{ name }}\n```json\n{{ arguments }}",
    "deepseek_v31": "<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>{{ arguments }}",
    "kimi_k2": "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ arguments }}",
    "mistral": "[TOOL_CALLS] [{{ call }}]",
    "mistral_v11": "[TOOL_CALLS]{{ name }}[CALL_ID]{{ id }}[ARGS]{{ arguments }}",
    "llama4_pythonic": "Write [func_name1(params_name1=params_value1), func_name2(params)]",
    "llama3_json": '<|header_start|>assistant<|header_end|>{"name": {{ name }}, "parameters": {{ arguments }}}',
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_the_template_tells(tmp_path: Path, name: str) -> None:
    assert dialect_of(tokenizer_with(tmp_path, LINES[name])).calls == FORMATS[name]


def test_another_format_between_hermes_markers_is_not_taken_for_it(tmp_path: Path) -> None:
    assert dialect_of(tokenizer_with(tmp_path, "<tool_call>\n<function={{ name }}>")).calls == FALLBACK


def test_a_vocabulary_tells(tmp_path: Path) -> None:
    assert dialect_of(tokenizer_with(tmp_path, None, MARKERS[:1])) == Dialect(FALLBACK)
    tokenizer = tokenizer_with(tmp_path, None, MARKERS)
    assert dialect_of(tokenizer) == Dialect(FALLBACK, True, thought_id=tokenizer.token_id("</think>"))


@pytest.mark.parametrize("special", [True, False])
def test_markers_are_part_of_the_text(tmp_path: Path, special: bool) -> None:
    tokenizer = tokenizer_with(tmp_path, None, MARKERS, special)
    ids = tokenizer.encode(f"<think>hm</think>{CALL}<|im_end|>", False)
    assert ids[0] == tokenizer.token_id("<think>") and tokenizer.decode(ids) == f"<think>hm</think>{CALL}"


def test_every_format_has_its_markers_in_the_text() -> None:
    """Files call them special, and parsers have to see them."""
    for form in FORMATS.values():
        text = form.begin + form.head("f") + form.tail + form.end + "".join((*form.openings, *form.closings))
        found = set(re.findall(r"<[|｜][^<>]+[|｜]>|</?(?:tool_call|arg_[a-z]+)>|\[[A-Z_]+\]", text))
        assert found <= TEXT_MARKERS.union(MESSAGE_MARKERS), form.name


def test_messages_have_markers_where_the_vocabulary_has_channels(tmp_path: Path) -> None:
    """Others call the end of a turn so."""
    end = ["<|end|>"]
    for folder, markers, shown in (("phi", end, False), ("harmony", ["<|channel|>", *end], True)):
        (tmp_path / folder).mkdir()
        tokenizer = tokenizer_with(tmp_path / folder, None, markers)
        (number,) = tokenizer.encode("<|end|>", False)
        assert (tokenizer.decode([number]) == "<|end|>") is shown and (number in tokenizer.special_ids) is not shown


def test_what_is_all_text_needs_no_reader() -> None:
    assert not Dialect().reads(F) and not Dialect(HERMES).reads({})
    assert Dialect(HERMES).reads(F) and Dialect(thinks=True).reads({})
    assert "hermes" in str(Dialect(HERMES)) and "told apart" in str(Dialect(thinks=True))


def test_calls_are_read_behind_reasoning_only() -> None:
    reader = Dialect(HERMES, True).reader(F, False)
    assert reader.feed(f"<think>maybe {CALL}</think>\n") == [Reasoning(f"maybe {CALL}")]
    assert reader.reason("stop") == "stop"
    assert reader.feed(f"So:\n{CALL}") == [Content("So:"), Call(0, "f"), Arguments(0, "{}")]
    assert reader.finish() == [] and reader.reason("stop") == "tool_calls" and reader.reason("length") == "length"


def test_what_was_held_back_comes_at_the_end() -> None:
    reader = Dialect(HERMES, True).reader(F, False)
    assert reader.feed(" \n<thi") == [] and reader.finish() == [Content(" \n<thi")]


# The token 9 ends reasoning; the text comes as one piece.
@pytest.mark.parametrize(
    ("opened", "text", "ids", "count"),
    [
        (False, "hello", [1, 2], 0),
        (False, "<think>a</think>b", [8, 1, 9, 2], 3),
        (True, "a</think>b", [1, 9, 2], 2),
        (True, "a", [1, 7], 2),
        (True, "a</think>b", [1, 5, 6, 2], None),
        (False, "<think>a", [8, 9], None),
    ],
)
def test_tokens_of_reasoning(opened: bool, text: str, ids: list[int], count: int | None) -> None:
    reader = Dialect(thinks=True, thought_id=9).reader({}, opened)
    reader.feed(text)
    for size in range(len(ids)):
        assert reader.reasoning_tokens(ids[:size]) == min(size, 99 if count is None else count)
    reader.finish()
    assert reader.reasoning_tokens(ids) == count
    blind = Dialect(thinks=True).reader({}, opened)
    assert blind.feed(text) and blind.reasoning_tokens(ids) == (0 if count == 0 else None)
