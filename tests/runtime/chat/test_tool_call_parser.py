# SPDX-License-Identifier: Apache-2.0
"""Calls are found however the text is split; text that is no call stays text; a call that has begun is reported as far
as it came."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.chat.answer_part import AnswerPart, Arguments, Call, Content, merged
from pontil.runtime.chat.calls.format import FORMATS, HERMES, LLAMA3_JSON, CallFormat
from pontil.runtime.chat.tool_call_parser import ToolCallParser

NAMES = ("weather", "a.b", 'sch"ön')
FUNCTIONS: dict[str, Any] = dict.fromkeys(NAMES)
READ = [form for form in FORMATS.values() if not form.messages]
BOTH = pytest.mark.parametrize("form", READ, ids=[form.name for form in READ])
# Pieces from which texts are built that are almost calls.
SHARDS = (
    "<tool_call>", "</tool_call>", "<tool", "_call>", "<", ">", "{", "}", '{"name": ', '"name"', '"weather"', '"a.b"',
    '"arguments": {', ', "parameters": {', '"x": 1', "[1, 2.5e3]", ":", ",", ";", '"', "\\", " ", "\n", "text", "é",
    '{"name": "weather", "arguments": {}}', '<tool_call>{"arguments": {"x": "<tool_call>"}, "name": "a.b"}',
    "<|python_tag|>", "```json", "[", "]", ")", "(", "=", "weather", "weather(", "x='", "<|python_start|>",
    "[TOOL_CALLS]", "[ARGS]", "<function=weather>", "<parameter=x>\n", "</parameter>", "</function>",
    "<arg_key>x</arg_key>", "<arg_value>", "</arg_value>", "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>weather",
    "weather<｜tool▁sep｜>", "\n```json\n{}", "```", "<｜tool▁call▁end｜>", "<|tool_call_begin|>",
    "functions.weather:0",
    "<|tool_call_argument_begin|>", '"type": "function", ', "\\ud83d", "01", "tru",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(SHARDS), max_size=16).map("".join)
ARGUMENTS = st.dictionaries(st.text(max_size=5), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) |
    st.sampled_from(["</tool_call>", "}}", "<think>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=5,
), max_size=4)  # fmt: skip
WORDS = st.sampled_from(["", "I look. ", "so\n\n", "< and <tool", "{no}", "tool_call>"])


def read(form: CallFormat, pieces: Sequence[str]) -> tuple[list[AnswerPart], ToolCallParser]:
    parser = ToolCallParser(form, FUNCTIONS, lenient=True)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return merged([*parts, *parser.finish()]), parser


def split(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[begin:end] for begin, end in zip(places, places[1:], strict=False)]


def calls_of(parts: Sequence[AnswerPart]) -> list[tuple[str, str]]:
    """Name and arguments of each call; a part belongs to a call that has begun."""
    found: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, Call):
            assert part.index == len(found)
            found.append((part.name, ""))
        elif isinstance(part, Arguments):
            name, text = found[part.index]
            found[part.index] = name, text + part.text
    return found


def content_of(parts: Sequence[AnswerPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


@BOTH
@settings(max_examples=examples(24, 300))
@given(text=TEXTS, cuts=st.lists(st.integers(0, 1 << 20), max_size=8))
def test_how_it_is_split_changes_nothing(form: CallFormat, text: str, cuts: list[int]) -> None:
    whole, parser = read(form, [text])
    assert read(form, split(text, cuts))[0] == whole == read(form, list(text))[0]
    if parser.complete:
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls_of(whole)), calls_of(whole)
    if not calls_of(whole):
        assert content_of(whole) == text, "nothing is lost of what is no call"


@settings(max_examples=examples(25, 150))
@given(
    calls=st.lists(st.tuples(WORDS, st.sampled_from(NAMES), ARGUMENTS, st.booleans()), max_size=3), end=WORDS,
    indent=st.sampled_from([None, 2]), cuts=st.lists(st.integers(0, 1 << 20), max_size=8),
)  # fmt: skip
def test_calls_come_out_as_they_were_written(calls: Any, end: str, indent: Any, cuts: list[int]) -> None:
    text, wanted, content = "", [], ""
    for words, name, given_arguments, turned in calls:
        arguments = json.dumps(given_arguments, indent=indent, ensure_ascii=turned)
        members = [f'"name": {json.dumps(name)}', f'"arguments": {arguments}']
        text += f"{words}\n<tool_call>\n{{{', '.join(reversed(members) if turned else members)}}}\n</tool_call>\n"
        content += words.rstrip()
        wanted.append((name, arguments))
    parts, parser = read(HERMES, split(text + end, cuts))
    assert calls_of(parts) == wanted and parser.complete is bool(calls)
    assert content_of(parts) == content + end


CALLING = '{"name": "weather", "arguments": {}}'
OTHER_LINES = ("weather()", '{"name": "Bob"}', '{"arguments": {}}', '{"name": "weather"}', "[1, 2]", "x = {", "}", "")
PROSE = st.sampled_from(["So it goes:", "1. Write `{}`.", f"Write {CALLING}", '{"a": 1}', "I'd not call ` that."])
PROGRAM = st.tuples(
    st.sampled_from(["python", "js", "sh", "jsonc"]), st.lists(st.sampled_from([CALLING, *OTHER_LINES]), max_size=4)
)
DATA = st.tuples(
    st.sampled_from(["json", "", "xml"]),
    st.lists(st.sampled_from(OTHER_LINES), min_size=1, max_size=4).filter(lambda lines: any(lines)),
)


@settings(max_examples=examples(60, 1000))
@given(parts=st.lists(PROSE | PROGRAM | DATA, max_size=6), cuts=st.lists(st.integers(0, 1 << 20), max_size=8))
def test_programs_and_data_are_no_calls(parts: list[Any], cuts: list[int]) -> None:
    """In a program not even what is written as a call is one."""
    lines = [part if isinstance(part, str) else "\n".join((f"```{part[0]}", *part[1], "```")) for part in parts]
    text = "\n".join(lines)
    found, parser = read(HERMES, split(text, cuts))
    assert content_of(found) == text and not parser.begun


@settings(max_examples=examples(30, 500))
@given(
    parts=st.lists(st.sampled_from(["json", "", "xml", None]) | PROGRAM, max_size=5),
    counts=st.lists(st.integers(1, 3), min_size=5, max_size=5), cuts=st.lists(st.integers(0, 1 << 20), max_size=8),
)  # fmt: skip
def test_fenced_calls_are_read_between_programs(parts: list[Any], counts: list[int], cuts: list[int]) -> None:
    """Blocks of one call or more, or calls on lines of their own (None), each behind a sentence."""
    text, content, wanted = "", "", 0
    for part, count in zip(parts, counts, strict=False):
        text, content = f"{text}So:\n", f"{content}So:"
        if isinstance(part, tuple):
            block = "\n".join((f"```{part[0]}", *part[1], "```\n"))
            text, content = text + block, f"{content}\n{block}"
        else:
            calls = "\n".join([CALLING] * count)
            text += f"{calls}\n" if part is None else f"```{part}\n{calls}\n```\n"
            wanted += count
    found, parser = read(HERMES, split(text, cuts))
    assert calls_of(found) == [("weather", "{}")] * wanted and parser.complete is bool(wanted)
    assert content_of(found) == content


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON], ids=["hermes", "llama3_json"])
def test_what_was_cut_is_shown_as_far_as_it_came(form: CallFormat) -> None:
    told = json.dumps({"city": "Łódź </tool_call>", "days": [1, {"x": None}]}, ensure_ascii=False)
    for name in NAMES:
        head = form.head(name)
        whole = head + told + form.tail
        for size in range(len(whole)):
            parts, parser = read(form, [whole[:size]])
            if size <= len(head):
                assert content_of(parts) == whole[:size] and not parser.begun
                continue
            assert content_of(parts) == ""
            ((found, shown),) = calls_of(parts)
            assert found == name and shown == told[: size - len(head)]
            assert parser.complete is (size > len(head) + len(told))


def test_arguments_come_as_they_are_written() -> None:
    parser = ToolCallParser(HERMES, FUNCTIONS)
    shown = [parser.feed(character) for character in '<tool_call>{"name": "weather", "arguments": {"x": 1}}']
    assert [parts for parts in shown if parts] == [
        [Call(0, "weather"), Arguments(0, "{")], *([Arguments(0, character)] for character in '"x": 1}'),
    ]  # fmt: skip


# The notation of each family's models with our own text: the text, its content, its calls.
RECORDED: dict[str, tuple[CallFormat, str, str, list[tuple[str, str]]]] = {
    "Qwen, two calls behind a sentence": (
        HERMES,
        "I'll check both cities.\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Łódź", "unit": "celsius"}}\n</tool_call>\n<tool_call>\n'
        '{"name": "weather", "arguments": {"city": "Paris", "unit": "celsius"}}\n</tool_call>',
        "I'll check both cities.",
        [("weather", '{"city": "Łódź", "unit": "celsius"}'), ("weather", '{"city": "Paris", "unit": "celsius"}')],
    ),
    "Hermes 2, arguments first, on one line": (
        HERMES,
        '<tool_call>{"arguments": {"days": [1, 2], "city": "Rome"}, "name": "weather"}</tool_call>',
        "",
        [("weather", '{"days": [1, 2], "city": "Rome"}')],
    ),
    "a closing marker that was forgotten": (
        HERMES, '<tool_call>\n{"name": "a.b", "arguments": {}}', "", [("a.b", "{}")],
    ),
    "a sentence behind a call": (
        HERMES, '<tool_call>{"name": "a.b", "arguments": {}}</tool_call>\n\nDone.', "Done.", [("a.b", "{}")],
    ),
    "an explanation of the format": (
        HERMES, "Write <tool_call> and </tool_call> around it.", "Write <tool_call> and </tool_call> around it.", [],
    ),
    "a function that nobody offered": (
        HERMES, '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', [],
    ),
    "a call behind one that is none": (
        HERMES, '<tool_call>x <tool_call>{"name": "a.b", "arguments": {}}</tool_call>', "<tool_call>x", [("a.b", "{}")],
    ),
    "an opening marker twice": (
        HERMES, '<tool_call><tool_call>{"name": "a.b", "arguments": {}}</tool_call>', "", [("a.b", "{}")],
    ),
    "SmolLM2, a list": (
        HERMES,
        '<tool_call>[{"name": "a.b", "arguments": {}}, {"name": "weather", "arguments": {"city": "Rome"}}]</tool_call>',
        "", [("a.b", "{}"), ("weather", '{"city": "Rome"}')],
    ),
    "a list that becomes text": (
        HERMES, '<tool_call>[{"name": "a.b", "arguments": {}}, no', ", no", [("a.b", "{}")],
    ),
    "Llama 3.1": (
        LLAMA3_JSON, '{"name": "weather", "parameters": {"city": "Rome"}}', "", [("weather", '{"city": "Rome"}')],
    ),
    "Llama 3.1 with its type": (
        LLAMA3_JSON, '{"type": "function", "name": "weather", "parameters": {"city": "Rome"}}', "",
        [("weather", '{"city": "Rome"}')],
    ),
    "Llama 3 behind its tag": (
        LLAMA3_JSON, '<|python_tag|>{"name": "weather", "parameters": {"city": "Rome"}}', "",
        [("weather", '{"city": "Rome"}')],
    ),
    "Llama 3.2, two calls": (
        LLAMA3_JSON, '{"name": "a.b", "parameters": {}}; {"name": "weather", "parameters": {"city": ""}}', "",
        [("a.b", "{}"), ("weather", '{"city": ""}')],
    ),
    "JSON that is the answer": (LLAMA3_JSON, '{"name": "Bob", "age": 5}', '{"name": "Bob", "age": 5}', []),
    "a program behind the tag": (LLAMA3_JSON, "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    "a call that does not begin the answer": (
        LLAMA3_JSON, 'Sure: {"name": "a.b", "parameters": {}}', 'Sure: {"name": "a.b", "parameters": {}}', [],
    ),
    "plain text": (LLAMA3_JSON, "\n It rains;  \n", "\n It rains;  \n", []),
}  # fmt: skip


@pytest.mark.parametrize(("form", "text", "content", "calls"), RECORDED.values(), ids=list(RECORDED))
def test_recorded_answers(form: CallFormat, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for pieces in ([text], list(text)):
        parts, parser = read(form, pieces)
        assert (content_of(parts), calls_of(parts)) == (content, calls)
        assert parser.complete is bool(calls)


@pytest.mark.parametrize(
    ("text", "arguments", "content"),
    [
        ('{"name": "a.b", "arguments": {"x": 01}} more', '{"x": 01', "}} more"),
        ('{"name": "a.b", "arguments": {}, "extra": 1}', "{}", ', "extra": 1}'),
        ('{"name": "a.b", "arguments": {}, "name": "a.b"}', "{}", ', "name": "a.b"}'),
        ('{"name": "a.b", "arguments": {"x": "\t"}}', '{"x": "', '\t"}}'),
    ],
)
def test_a_call_that_goes_wrong_is_not_complete(text: str, arguments: str, content: str) -> None:
    parts, parser = read(HERMES, list("<tool_call>" + text))
    assert calls_of(parts) == [("a.b", arguments)] and content_of(parts) == content and not parser.complete
