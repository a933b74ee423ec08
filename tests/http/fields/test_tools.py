# SPDX-License-Identifier: Apache-2.0
"""Tools: the reader accepts what the schema accepts, and the grammar expresses the request."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from pontil.http.fields.structured_output import OutputStructure
from pontil.http.fields.tools import TOOLS, ToolChoice, ToolFields, tool_fields
from pontil.http.openai.chat.prompt import CHAT_PROMPT, chat_prompt
from pontil.http.openai.chat.tool_calling import structure_of
from pontil.http.schema.parameter import object_schema, read_all
from pontil.http.schema.reader import Fields
from pontil.runtime.chat.answer_part import AnswerPart, Arguments
from pontil.runtime.chat.calls.format import (
    FORMATS,
    GLM45,
    HARMONY,
    HERMES,
    LLAMA3_JSON,
    LLAMA4_PYTHONIC,
    QWEN3_CODER,
    CallFormat,
)
from pontil.runtime.chat.dialect import FALLBACK, Dialect
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar import GrammarCompiler, check_grammar
from pontil.runtime.grammar.grammar_text import grammar_of_schema
from pontil.runtime.tokenizer.tokenizer import Tokenizer

SCHEMA = {"properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
ADD = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
NOOP = {"function": {"name": "no/op", "description": None, "parameters": None, "strict": None}}
STRICT = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"} | SCHEMA, "strict": True}}
NAMED = {"type": "function", "function": {"name": "add"}}
AMONG: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
GOOD: list[dict[str, Any]] = [
    {"tools": [ADD, NOOP], "tool_choice": AMONG},
    {}, {"tools": []}, {"tools": None, "tool_choice": None}, {"tools": [ADD, NOOP]}, {"tools": [STRICT]},
    {"tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [ADD], "tool_choice": NAMED}, {"tools": [ADD], "tool_choice": {"function": {"name": "add"}}},
    {"tools": [ADD], "tool_choice": "none"}, {"tool_choice": "auto"}, {"tool_choice": "none"},
    {"tools": [{"function": {"name": "a"}, "more": 1}]}, {"tools": [{"function": {"name": "a", "more": 1}}]},
    {"tools": [ADD], "tool_choice": NAMED | {"more": 1}},
]  # fmt: skip
BAD: list[dict[str, Any]] = [
    {"tools": [ADD], "tool_choice": {"type": "allowed_tools"}},
    {"tools": [ADD], "tool_choice": AMONG | {"allowed_tools": {"mode": "none", "tools": [NAMED]}}},
    {"tools": [ADD], "tool_choice": AMONG | {"allowed_tools": {"mode": "auto", "tools": []}}},
    {"tools": {}}, {"tools": [5]}, {"tools": [{}]}, {"tools": [{"function": {}}]},
    {"tools": [{"type": "code", "function": {"name": "a"}}]}, {"tools": [{"function": {"name": ""}}]},
    {"tools": [{"function": {"name": "a b"}}]}, {"tools": [{"function": {"name": "a" * 129}}]},
    {"tools": [{"function": {"name": "a", "parameters": {"type": "string"}}}]},
    {"tools": [{"function": {"name": "a", "parameters": []}}]}, {"tools": [{"function": {"name": "a", "strict": 1}}]},
    {"tools": [ADD], "tool_choice": "any"}, {"tools": [ADD], "tool_choice": 1}, {"tools": [ADD], "tool_choice": {}},
    {"tools": [ADD], "tool_choice": {"type": "custom", "function": {"name": "add"}}},
    {"parallel_tool_calls": "yes"},
]  # fmt: skip


def read(asked: dict[str, Any]) -> ToolFields:
    fields = Fields(asked)
    return tool_fields(fields, read_all(fields, TOOLS))


@pytest.mark.parametrize("asked", [*GOOD, *BAD], ids=str)
def test_the_schema_takes_what_the_reader_takes(asked: dict[str, Any]) -> None:  # F3
    takes = jsonschema.Draft202012Validator(object_schema(TOOLS, 50)).is_valid(asked)
    assert takes == (asked in GOOD)
    if takes:
        read(asked)
        return
    with pytest.raises(RequestError) as refused:
        read(asked)
    assert str(refused.value.param).startswith(("tools", "tool_choice", "parallel_tool_calls"))


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": [NOOP], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [NOOP], "tool_choice": AMONG}, "tool_choice"),
        ({"tools": [ADD, STRICT]}, "tools[1].function.name"),
    ],
)
def test_what_only_code_can_tell(asked: dict[str, Any], param: str) -> None:  # F3
    with pytest.raises(RequestError) as refused:
        read(asked)
    assert refused.value.param == param


def test_what_may_be_called() -> None:
    assert read({"tools": [ADD, NOOP]}).functions == {"add": SCHEMA, "no/op": None}
    assert read({"tools": [ADD], "tool_choice": NAMED}).choice == ToolChoice("required", "add")
    among = read({"tools": [ADD, NOOP], "tool_choice": AMONG})
    assert (among.functions, among.shown, among.choice.mode) == ({"add": SCHEMA}, (ADD,), "auto")
    none = read({"tools": [ADD], "tool_choice": "none"})
    assert none.functions == {} and none.shown == ()


def test_a_depth_that_nobody_needs_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"properties": {"a": deep}}
    with pytest.raises(RequestError, match="nested") as refused:
        read({"tools": [{"function": {"name": "a", "parameters": deep}}]})
    assert refused.value.param == "tools[0].function.parameters"


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size)


HERMES_ADD = '<tool_call>\n{"name": "add", "arguments": {"x": 5}}\n</tool_call>'
HERMES_ODD = HERMES_ADD.replace('"x"', '"y"')
HERMES_NOOP = '<tool_call>\n{"name": "no/op", "arguments": {}}\n</tool_call>'
LLAMA_ADD, LLAMA_NOOP = '{"name": "add", "parameters": {"x": 5}}', '{"name": "no/op", "parameters": {}}'
REQUIRED = {"tools": [ADD, NOOP], "tool_choice": "required"}
# A dialect, whether the prompt opens reasoning, the request's fields, texts that match and texts that do not.
CASES: list[tuple[Dialect, bool, dict[str, Any], list[str], list[str]]] = [
    (Dialect(HERMES), False, REQUIRED, [HERMES_ADD, HERMES_NOOP, f"{HERMES_ADD}\n{HERMES_NOOP}"],
     ["", "well", HERMES_ODD, f"so {HERMES_ADD}"]),
    (Dialect(HERMES), False, REQUIRED | {"parallel_tool_calls": False}, [HERMES_ADD],
     [f"{HERMES_ADD}\n{HERMES_NOOP}"]),
    (Dialect(HERMES), False, REQUIRED | {"tool_choice": NAMED}, [HERMES_ADD],
     [HERMES_NOOP, f"{HERMES_ADD}\n{HERMES_ADD}"]),
    (Dialect(HERMES, thinks=True), True, REQUIRED, [f"hm\n</think>\n\n{HERMES_ADD}"], [HERMES_ADD]),
    (Dialect(HERMES, thinks=True), False, REQUIRED, [f"<think>\nhm\n</think>\n\n{HERMES_ADD}", HERMES_ADD],
     [f"hm</think>{HERMES_ADD}"]),
    (Dialect(HERMES), False, {"tools": [STRICT, NOOP]}, ["well", f"so\n{HERMES_ADD}\n{HERMES_NOOP}."],
     [HERMES_ODD, "<tool_call>"]),
    (Dialect(HERMES), False, {"tools": [ADD], "parallel_tool_calls": False}, ["well", HERMES_ADD, f"so {HERMES_ODD}"],
     [f"{HERMES_ADD}\n{HERMES_ADD}"]),
    (Dialect(LLAMA3_JSON), False, REQUIRED, [LLAMA_ADD, f"{LLAMA_ADD}; {LLAMA_NOOP}"], ["well", "{}"]),
    (Dialect(LLAMA3_JSON), False, {"tools": [STRICT, NOOP]}, ["well", LLAMA_ADD, f"{LLAMA_ADD}; {LLAMA_NOOP}"],
     ["{}", LLAMA_ADD.replace("5", "true")]),
    (Dialect(LLAMA3_JSON), False, {"tools": [ADD, NOOP], "parallel_tool_calls": False}, ["well", LLAMA_ADD],
     [f"{LLAMA_ADD}; {LLAMA_NOOP}"]),
]  # fmt: skip


def acceptor(compiler: GrammarCompiler, grammar: str) -> Callable[[str], bool]:
    """Return a function that tells whether this grammar accepts a text as complete."""
    end = compiler.tokenizer.eos_ids[0]
    guide = compiler.compile(grammar).guide(frozenset({end}))

    def accepts(text: str) -> bool:
        ids = compiler.tokenizer.encode(text, False)
        return guide.fitting([], ids) == len(ids) and bool(guide.masks(ids)[0][end // 8] >> end % 8 & 1)

    return accepts


@pytest.mark.parametrize(("dialect", "thinking", "asked", "fit", "unfit"), CASES)
def test_a_grammar_says_what_was_asked_for(
    compiler: GrammarCompiler, dialect: Dialect, thinking: bool, asked: dict[str, Any], fit: list[str], unfit: list[str]
) -> None:
    structure = structure_of(read(asked), None, dialect, thinking)
    assert isinstance(structure, OutputStructure) and structure.param == "tools"
    check_grammar(structure.grammar)
    accepts = acceptor(compiler, structure.grammar)
    assert [text for text in fit if not accepts(text)] == [] == [text for text in unfit if accepts(text)]


TYPED = {
    "type": "object",
    "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "at": {"$ref": "#/$defs/Place"},
        "unit": {"enum": ["celsius", "kelvin"]}, "hourly": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
    "additionalProperties": False,
}  # fmt: skip
FORECAST = {"type": "function", "function": {"name": "forecast", "parameters": TYPED}}
CHOSEN = {"type": "function", "function": {"name": "forecast", "parameters": {
    "type": "object", "properties": {"unit": {"enum": ["celsius"]}, "hourly": {"type": "boolean"}},
}}}  # fmt: skip
GOOD_VALUES: list[dict[str, Any]] = [
    {"city": "Łódź\n<b>", "days": 3}, {"city": "", "days": 3, "at": {"x": 1.5}, "unit": "kelvin", "hourly": True},
]  # fmt: skip
BAD_VALUES: list[dict[str, Any]] = [
    {"city": "Rome"}, {"city": "Rome", "days": "soon"}, {"city": "Rome", "days": 3, "unit": "rankine"},
    {"city": "Rome", "days": 3, "at": {}}, {"city": "Rome", "days": 3, "more": 1},
]  # fmt: skip
EVERY = pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))


def text_of(form: CallFormat, *calls: tuple[str, dict[str, Any]]) -> str:
    """Return these calls as a model writes them; words of JSON are words of Python where a grammar is in force."""
    text = form.begin + form.between.join(form.written(name, values) for name, values in calls) + form.end
    if form is LLAMA4_PYTHONIC:
        text = text.replace("=True", "=true").replace("'", '"')
    return text


@EVERY
def test_every_format_has_its_grammar(compiler: GrammarCompiler, form: CallFormat) -> None:
    """Texts that it takes are read as calls that follow the schema."""
    dialect = Dialect(form)
    required = acceptor(compiler, grammar(dialect, {"tools": [FORECAST, NOOP], "tool_choice": "required"}))
    named = {"type": "function", "function": {"name": "forecast"}}
    one = acceptor(compiler, grammar(dialect, {"tools": [FORECAST, NOOP], "tool_choice": named}))
    single = acceptor(compiler, grammar(dialect, {"tools": [FORECAST, NOOP], "parallel_tool_calls": False}))
    strict = {"type": "function", "function": FORECAST["function"] | {"strict": True}}  # type: ignore[operator]
    possible = acceptor(compiler, grammar(dialect, {"tools": [strict, NOOP]}))
    before = "well " if form.anywhere and not form.messages else ""
    well = "<|channel|>final<|message|>well" if form.messages else "well"
    for values in GOOD_VALUES:
        call, both = text_of(form, ("forecast", values)), text_of(form, ("forecast", values), ("no/op", {}))
        assert required(call) and one(call) and single(before + call) and possible(before + call), call
        assert not one(both) and not single(both)
        assert form.messages or (required(both) and possible(both)), both
        parser = Dialect(form).reader({"forecast": TYPED, "no/op": None}, False)
        parts = [*parser.feed(both), *parser.finish()]
        assert parser.reason("stop") == "tool_calls" and json.loads(arguments_of(parts, 0)) == values
    for values in BAD_VALUES:
        call = text_of(form, ("forecast", values))
        assert not required(call) and not one(call) and not possible(before + call), call
    assert possible(well) and single(well) and not required(well)
    optional = acceptor(compiler, grammar(dialect, {"tools": [CHOSEN], "tool_choice": "required"}))
    for chosen in ({}, {"unit": "celsius"}, {"hourly": True}, {"unit": "celsius", "hourly": True}):
        assert optional(text_of(form, ("forecast", chosen)))
    assert not optional(text_of(form, ("forecast", {"unit": "kelvin"})))


def grammar(dialect: Dialect, asked: dict[str, Any]) -> str:
    structure = structure_of(read(asked), None, dialect, False)
    assert structure is not None
    check_grammar(structure.grammar)
    return structure.grammar


def arguments_of(parts: Sequence[AnswerPart], index: int) -> str:
    return "".join(part.text for part in parts if isinstance(part, Arguments) and part.index == index)


def strictly(name: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {name: schema}} | more
    return {"tools": [{"function": {"name": "f", "strict": True, "parameters": parameters}}]}


@pytest.mark.parametrize(
    ("form", "asked", "says"),
    [
        (QWEN3_CODER, strictly("a", {"type": "string", "pattern": "a+"}), "pattern of the parameter 'a'"),
        (GLM45, strictly("a", {}, minProperties=1), "minProperties cannot be kept beside strict"),
        (GLM45, strictly("a", {"enum": ["</arg_value>"]}), "a text of 'a' cannot be written"),
        (QWEN3_CODER, strictly("<a", {}), "'<a' cannot be written"),
        (LLAMA4_PYTHONIC, strictly("a-b", {}), "'a-b' cannot be written"),
        (LLAMA4_PYTHONIC, strictly("a", {}, required=["b"]), "'b' is required, but is none"),
    ],
)
def test_what_a_format_cannot_keep_is_refused(form: CallFormat, asked: dict[str, Any], says: str) -> None:  # F3
    with pytest.raises(RequestError, match=says) as refused:
        structure_of(read(asked), None, Dialect(form), False)
    assert refused.value.param == "tools"
    if "strict" in says or "pattern" in says:
        asked["tools"][0]["function"]["strict"] = False
        assert structure_of(read(asked | {"tool_choice": "required"}), None, Dialect(form), False)


def test_a_structure_beside_calls(compiler: GrammarCompiler) -> None:
    """The output is one or the other; a client's own grammar and required calls exclude a structure."""
    own = OutputStructure(grammar_of_schema({"type": "object", "additionalProperties": False}), "response_format")
    tools = {"tools": [STRICT, NOOP]}
    for dialect, fit, unfit in (
        (
            Dialect(HERMES),
            ["{}", HERMES_ADD, f"{HERMES_ADD}\n{HERMES_NOOP}"],
            ["well", HERMES_ODD, f"{{}}{HERMES_ADD}"],
        ),
        (
            Dialect(HERMES, thinks=True),
            ["{}", "<think>hm</think>{}", f"<think>hm</think>{HERMES_ADD}"],
            ["hm</think>{}"],
        ),
        (Dialect(LLAMA3_JSON), ["{}", LLAMA_ADD], ['{"a": 1}', "well"]),
    ):
        structure = structure_of(read(tools), own, dialect, False)
        assert structure is not None
        accepts = acceptor(compiler, structure.grammar)
        assert [text for text in fit if not accepts(text)] == [] == [text for text in unfit if accepts(text)]
    for asked, kept, dialect in (
        (tools | {"tool_choice": "required"}, own, Dialect(HERMES)), (tools, own, Dialect()),
        (tools, replace(own, written=False), Dialect(HERMES)),
    ):  # fmt: skip
        with pytest.raises(RequestError, match="leaves no room") as refused:
            structure_of(read(asked), kept, dialect, False)
        assert refused.value.param == "response_format"


def test_a_structure_in_messages(compiler: GrammarCompiler) -> None:
    """The final message has the form, behind a message of reasoning or not."""
    own = OutputStructure(grammar_of_schema({"type": "object", "additionalProperties": False}), "response_format")
    thought, final = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant", "<|channel|>final<|message|>{}"
    call = "<|channel|>commentary to=functions.no/op <|constrain|>json<|message|>{}"
    for asked, calls in (({}, False), ({"tools": [NOOP]}, True)):
        structure = structure_of(read(asked), own, Dialect(HARMONY), False)
        assert structure is not None
        accepts = acceptor(compiler, structure.grammar)
        assert accepts(final) and accepts(thought + final) and accepts(call) is calls is accepts(thought + call)
        assert not accepts("{}") and not accepts(thought) and not accepts(f"{final}{{}}")


def test_a_model_that_was_taught_makes_one_call(compiler: GrammarCompiler) -> None:
    accepts = acceptor(compiler, grammar(Dialect(FALLBACK), REQUIRED))
    assert accepts(HERMES_ADD) and not accepts(f"{HERMES_ADD}\n{HERMES_NOOP}")


def test_an_answer_may_be_free() -> None:
    for asked in ({}, {"tools": [ADD, NOOP]}, REQUIRED | {"tool_choice": "none"}):
        assert structure_of(read(asked), None, Dialect(HERMES), False) is None
    assert structure_of(read({"tools": [ADD]}), None, Dialect(), False) is None


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (REQUIRED, "tool_choice"),
        ({"tools": [NOOP, STRICT]}, "tools[1].function.strict"),
        ({"tools": [ADD], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ],
)
def test_nothing_is_promised_where_calls_are_not_read(asked: dict[str, Any], param: str) -> None:  # F3
    with pytest.raises(RequestError, match="--tool-call-parser none") as refused:
        structure_of(read(asked), None, Dialect(), False)
    assert refused.value.param == param


def test_schemas_that_cannot_be_used_name_the_tools() -> None:
    schemas: list[dict[str, Any]] = [{"x-guidance": {}}, {"enum": ["a" * 99] * 2000}]
    for schema in schemas:
        asked = {"tools": [{"function": {"name": "a", "parameters": schema}}], "tool_choice": "required"}
        with pytest.raises(RequestError) as refused:
            structure_of(read(asked), None, Dialect(HERMES), False)
        assert refused.value.param == "tools"


def test_tools_are_part_of_what_the_template_is_given() -> None:
    fields = Fields({"messages": [{"role": "user", "content": "hi"}], "tools": [ADD]})
    prompt = chat_prompt(fields, read_all(fields, CHAT_PROMPT))
    assert prompt.tools.shown == (ADD,) and prompt.about_tools
