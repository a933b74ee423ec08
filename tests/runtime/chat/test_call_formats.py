# SPDX-License-Identifier: Apache-2.0
"""Each format's calls are read as its models' documentation writes them, wherever the stream is cut, and what is
written here is read again."""

import codecs
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.chat.answer_part import AnswerPart, Arguments, Call, Content, merged
from pontil.runtime.chat.calls.format import FORMATS, CallFormat
from pontil.runtime.chat.harmony_parser import HarmonyParser
from pontil.runtime.chat.tool_call_parser import ToolCallParser

CITY = {"type": "string"}
FUNCTIONS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": CITY, "days": {"type": "integer"}, "hourly": {"type": "boolean"}, "at": {"$ref": "#/$defs/Place"},
            "unit": {"enum": ["celsius", "kelvin"]}, "note": {"type": ["string", "null"]}, "any": {},
            "limits": {"type": "array", "items": {"type": "number"}}, "query": CITY,
        },
        "$defs": {"Place": {"type": "object"}},
    },
    "now": None,
    "shop.search": {"type": "object"},
}  # fmt: skip
EVERY = pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
Found = tuple[str, list[tuple[str, Any]], list[str | None]]


def found_in(parts: list[AnswerPart]) -> Found:
    """Return the content, the calls and their ids."""
    content, calls, ids = "", list[list[str]](), list[str | None]()
    for part in parts:
        if isinstance(part, Call):
            assert part.index == len(calls)
            calls.append([part.name, ""])
            ids.append(part.identity)
        elif isinstance(part, Arguments):
            calls[part.index][1] += part.text
        else:
            assert isinstance(part, Content)
            content += part.text
    return content, [(name, json.loads(text)) for name, text in calls], ids


def read(form: CallFormat, pieces: list[str]) -> tuple[list[AnswerPart], ToolCallParser | HarmonyParser]:
    parser = HarmonyParser(FUNCTIONS) if form.messages else ToolCallParser(form, FUNCTIONS, lenient=True)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return merged([*parts, *parser.finish()]), parser


def pieces_of_bytes(text: str, cut: int) -> list[str]:
    """Return the text in two pieces, cut between two bytes, as a detokenizer would give them."""
    decoder, raw = codecs.getincrementaldecoder("utf-8")(), text.encode()
    return [decoder.decode(raw[:cut]), decoder.decode(raw[cut:], final=True)]


# Our own texts in the form that each family's template or card shows: format, text, content, calls.
RECORDED: dict[str, tuple[str, str, str, list[tuple[str, Any]]]] = {
    "Mistral 7B v0.3": (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Łódź"}}, {"name": "now", "arguments": {}}]',
        "", [("get_weather", {"city": "Łódź"}), ("now", {})],
    ),
    "Mistral with ids": (
        "mistral", '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "VvvODy9mT"}]', "", [("now", {})],
    ),
    "Mistral Small 3.2": (
        "mistral_v11",
        'I look.[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS]{"city": "Zürich"}'
        '[TOOL_CALLS]now[CALL_ID]xyzXYZ789[ARGS]{}',
        "I look.", [("get_weather", {"city": "Zürich"}), ("now", {})],
    ),
    "Devstral": ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}', "", [("get_weather", {"city": "Oslo"})]),
    "Mistral whose tag is skipped": (
        "mistral_v11", '[TOOL_CALLS]get_weather{"city": "Oslo"}', "", [("get_weather", {"city": "Oslo"})],
    ),
    "Qwen3-Coder": (
        "qwen3_coder",
        "Both then.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nŁódź\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n<parameter=hourly>\nTrue\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n"
        "</function>\n</tool_call>",
        "Both then.", [("get_weather", {"city": "Łódź", "days": 3, "hourly": True}), ("now", {})],
    ),
    "Qwen3-Coder without its first tag": (
        "qwen3_coder", "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>", "",
        [("get_weather", {"city": "Oslo"})],
    ),
    "Qwen3-Coder, a program of several lines": (
        "qwen3_coder",
        '<tool_call>\n<function=get_weather>\n<parameter=query>\nif a < b:\n    print("</p>")\n\n</parameter>\n'
        "</function>\n</tool_call>",
        "", [("get_weather", {"query": 'if a < b:\n    print("</p>")\n'})],
    ),
    "Qwen3-Coder, values of other types": (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=at>\n{'x': [1.5, None]}\n</parameter>\n<parameter=note>\n"
        "null\n</parameter>\n<parameter=unit>\nkelvin\n</parameter>\n<parameter=any>\n[1]\n</parameter>\n"
        "<parameter=days>\nsoon\n</parameter>\n<parameter=limits>\n[1, 2.5]\n</parameter>\n"
        "<parameter=city>\n5\n</parameter>\n</function>\n"
        "</tool_call>",
        "", [("get_weather", {"at": {"x": [1.5, None]}, "note": None, "unit": "kelvin", "any": [1], "days": "soon",
                              "limits": [1, 2.5], "city": "5"})],
    ),
    "DeepSeek V3": (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        "```json\n{\"city\": \"Łódź\"}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "", [("get_weather", {"city": "Łódź"}), ("now", {})],
    ),
    "DeepSeek V3.1": (
        "deepseek_v31",
        'So:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "So:", [("get_weather", {"city": "Oslo"}), ("now", {})],
    ),
    "GLM-4.5": (
        "glm45",
        "I look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Łódź</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        "I look.", [("get_weather", {"city": "Łódź", "days": 3}), ("now", {})],
    ),
    "GLM-4.7, without line ends": (
        "glm45", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome\n</arg_value></tool_call>", "",
        [("get_weather", {"city": "Rome\n"})],
    ),
    "Kimi K2": (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Beijing"}<|tool_call_end|><|tool_call_begin|>functions.shop.search:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "", [("get_weather", {"city": "Beijing"}), ("shop.search", {})],
    ),
    "Llama 4, a list of calls": (
        "llama4_pythonic", "[get_weather(city='Łódź', days=3, limits=(1, -.5,), hourly=True), now()]", "",
        [("get_weather", {"city": "Łódź", "days": 3, "limits": [1, -0.5], "hourly": True}), ("now", {})],
    ),
    "Llama 4 between its tags": (
        "llama4_pythonic",
        '<|python_start|>[get_weather(at={"x": [None, 1_000]}, query="it\\\'s \\x41\\n")]<|python_end|>', "",
        [("get_weather", {"at": {"x": [None, 1000]}, "query": "it's A\n"})],
    ),
    "a list that is no calls": ("llama4_pythonic", "[1] says: now()", "[1] says: now()", []),
}  # fmt: skip
NOW = '{"name": "now", "arguments": {}}'
# Without markers, as models write that were trained for no format, and Qwen2.5-Coder.
BARE: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {
    "nothing but JSON": ('{"name": "now", "arguments": {}}', "", [("now", {})]),
    "space before": ('\n  {"name": "now", "parameters": {"x": 1}}\n', "", [("now", {"x": 1})]),
    "in a fence": ('So:\n```json\n{"name": "now", "arguments": {}}\n```\nDone', "So:Done", [("now", {})]),
    "in a list": ('[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]', "", [("now", {})] * 2),
    "in tags": ('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "", [("now", {})]),
    "on a line of its own": ('I call\n{"name": "now", "arguments": {}}', "I call", [("now", {})]),
    "in a sentence": ('Write {"name": "now", "arguments": {}}', 'Write {"name": "now", "arguments": {}}', []),
    "other JSON": ('{"name": "Bob", "arguments": {}}', '{"name": "Bob", "arguments": {}}', []),
    "a program": ("```python\nnow()\n```", "```python\nnow()\n```", []),
    "two in a fence": (f"```json\n{NOW}\n{NOW}\n```\nDone", "Done", [("now", {})] * 2),
    "two fences": (f"```json\n{NOW}\n```\n\n```json\n{NOW}\n```", "", [("now", {})] * 2),
    "two lines": (f"{NOW}\n{NOW}", "", [("now", {})] * 2),
    "twice in a line": (f"{NOW} {NOW}", NOW, [("now", {})]),
    "tags in a fence": (f"```xml\n<tool_call>\n{NOW}\n</tool_call>\n```", "", [("now", {})]),
    "a fence in tags": (f"<tool_call>\n```json\n{NOW}\n```\n</tool_call>", "", [("now", {})]),
    "the tags of the tools": (f"<tools>\n{NOW}\n</tools>", "", [("now", {})]),
    "a list in the tags of the tools": (f"<tools>[{NOW}, {NOW}]</tools>So", "So", [("now", {})] * 2),
    "text behind one in a fence": (f"```json\n{NOW}\n# now\n```\nSo", "# now\nSo", [("now", {})]),
    "a call in a program": (f"```python\n{NOW}\n```", f"```python\n{NOW}\n```", []),
    "a program before a fence": (
        f"```python\nnow()\n```\n```json\n{NOW}\n```", "```python\nnow()\n```", [("now", {})],
    ),
    "other JSON in a fence": ('```json\n{"a": [1]}\n```\nSo', '```json\n{"a": [1]}\n```\nSo', []),
    "a fence without an end": (f"```json\n{NOW}", "", [("now", {})]),
    "empty fences": (f"```\n```\n{NOW}", "```\n```", [("now", {})]),
}  # fmt: skip
CASES = {name: (FORMATS[form], *rest) for name, (form, *rest) in RECORDED.items()} | {
    f"bare, {name}": (FORMATS["hermes"], *rest) for name, rest in BARE.items()
}


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES.values(), ids=list(CASES))
def test_recorded_answers(form: CallFormat, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    parts, parser = read(form, [text])
    assert found_in(parts)[:2] == (content, calls) and parser.complete is bool(calls)
    assert read(form, list(text))[0] == parts
    for cut in range(len(text.encode())):
        assert read(form, pieces_of_bytes(text, cut))[0] == parts, cut


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES.values(), ids=list(CASES))
def test_what_was_cut_is_a_beginning_of_the_whole(
    form: CallFormat, text: str, content: str, calls: list[tuple[str, Any]]
) -> None:
    """Announced calls stay; the parts come in order, and none later than its text."""
    whole = read(form, [text])[0]
    told = "".join(part.text for part in whole if isinstance(part, Arguments))
    for size in range(len(text)):
        parser = ToolCallParser(form, FUNCTIONS, lenient=True)
        parts = merged(parser.feed(text[:size]))
        assert told.startswith("".join(part.text for part in parts if isinstance(part, Arguments)))
        assert [part for part in parts if isinstance(part, Call)] == [part for part in whole if isinstance(part, Call)][
            : parser.begun
        ]


def test_ids_are_the_models_own_once() -> None:
    ids = {name: found_in(read(FORMATS[RECORDED[name][0]], [RECORDED[name][1]])[0])[2] for name in RECORDED}
    assert ids["Mistral Small 3.2"] == ["abcDEF123", "xyzXYZ789"] and ids["GLM-4.5"] == [None, None]
    assert ids["Kimi K2"] == ["functions.get_weather:0", "functions.shop.search:1"]
    twice = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>" * 2
    assert found_in(read(FORMATS["kimi_k2"], [twice])[0])[2] == ["functions.now:0", None]
    made = FORMATS["mistral"].make_id
    assert made is not None and re.fullmatch("[A-Za-z0-9]{9}", made("now", 0))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["</parameter>"[:-1], "<", "\n", "\n\n</", "it's", '"', "\\", "True", "null", "5", "```", "]", ")", "}]"]
)
VALUES = st.fixed_dictionaries({}, optional={
    "city": TEXT, "query": TEXT, "days": st.integers(), "hourly": st.booleans(), "limits": st.lists(st.floats(-9, 9)),
    "at": st.dictionaries(TEXT, st.none() | st.booleans() | st.integers() | TEXT, max_size=3),
})  # fmt: skip


@EVERY
@settings(max_examples=examples(25, 200), deadline=None)
@given(values=st.lists(VALUES, min_size=1, max_size=2), cut=st.integers(0, 1 << 20))
def test_what_is_written_is_read(form: CallFormat, values: list[dict[str, Any]], cut: int) -> None:
    text = form.begin + form.between.join(form.written("get_weather", one) for one in values) + form.end
    pieces = pieces_of_bytes(text, cut % (len(text.encode()) + 1))
    parts, parser = read(form, pieces)
    assert found_in(parts)[:2] == ("", [("get_weather", one) for one in values]) and parser.complete


# Characters of a hostile answer, enough for a square to be more than the bound, and levels of one that is deep: more
# than Python's stack has.
SIZE, LEVELS = examples(500, 5000), examples(1250, 5000)
# Beginnings of calls, each with text that may go on for ever.
HOSTILE: list[tuple[str, Callable[[CallFormat], str]]] = [
    ("depth", lambda form: form.begin + form.head("get_weather") + "[" * LEVELS),
    ("depth of arguments", lambda form: form.begin + form.head("get_weather") + '{"x":' * LEVELS),
    ("a number", lambda form: form.begin + form.head("get_weather") + '{"x": ' + "9" * SIZE),
    ("a number by name", lambda form: form.begin + form.head("get_weather") + "x=" + "9" * SIZE),
    ("a text", lambda form: form.begin + form.head("get_weather") + '{"x": "' + "a\\n" * (SIZE // 3)),
    ("a value", lambda form: form.begin + form.head("get_weather") + "<parameter=x>" + "\n<" * (SIZE // 2)),
    ("another value", lambda form: form.begin + form.head("now") + "<arg_key>x</arg_key><arg_value>" + "<" * SIZE),
    ("a key", lambda form: form.begin + form.head("get_weather") + "<parameter=" + "x" * SIZE),
    ("a name", lambda form: form.begin + form.before + "x" * SIZE),
    ("space", lambda form: form.begin + form.before + " \n" * (SIZE // 2)),
    ("space at first", lambda form: " \n" * (SIZE // 2)),
    ("markers", lambda form: "".join(form.openings) * (SIZE // 16)),
    ("markers and names", lambda form: "".join(f"{one}x{{" for one in form.openings) * (SIZE // 16)),
    ("a header", lambda form: "<|channel|>final " + "x" * SIZE),
    ("messages", lambda form: "<|channel|>final<|message|>a<|end|>" * (SIZE // 32)),
    ("ends of messages", lambda form: "<|end|>" * (SIZE // 7)),
    ("brackets", lambda form: "{[(" * (LEVELS // 3)), ("lines of brackets", lambda form: "\n{" * (SIZE // 2)),
    ("ends", lambda form: form.begin + form.written("now", {}) + "".join(form.closings) * (SIZE // 16)),
    ("calls", lambda form: form.begin + form.between.join([form.written("now", {})] * (SIZE // 50))),
]  # fmt: skip


@EVERY
@pytest.mark.parametrize("make", [make for _, make in HOSTILE], ids=[name for name, _ in HOSTILE])
def test_hostile_answers_end_and_cost_what_their_size_costs(
    form: CallFormat, make: Callable[[CallFormat], str]
) -> None:
    text = make(form)
    whole, parser = read(form, [text])
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        single, _ = read(form, list(text))
    finally:
        sys.setprofile(None)
    assert single == whole and calls < 60 * len(text) + 1000
    if not form.messages and not parser.begun:
        assert "".join(part.text for part in whole if isinstance(part, Content)) == text
    if parser.complete:
        found_in(whole)
