# SPDX-License-Identifier: Apache-2.0
"""Tools and structured output as /v1/responses describes them, read into the forms of a chat. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pontil.http.fields.structured_output import SCHEMA, OutputStructure, closed, read_described, read_format
from pontil.http.fields.tools import (
    ALLOWED,
    ALLOWED_MODES,
    FUNCTION,
    MODES,
    UNSUPPORTED,
    ToolChoice,
    choice_of,
    read_allowed_tools,
    read_definition,
    tools_schema,
)
from pontil.http.openai.chat.prompt import MAX_OPTION
from pontil.http.schema.message_schema import MAX_TOOLS, TEXT
from pontil.http.schema.parameter import Parameter, Schema, opened
from pontil.http.schema.parameter_types import OptionsType, ShapedType, TextType
from pontil.http.schema.reader import Fields

SHOWN = ("name", "description", "parameters", "strict")
CUSTOM, NAMESPACE = "custom", "namespace"
FUNCTION_KIND = "function"
KINDS = (FUNCTION_KIND, CUSTOM, NAMESPACE)
# The one argument of a custom tool as a function.
INPUT = "input"


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """A function's place among the tools that were sent: its own name, and the namespace that holds it. One that
    `is_custom` takes a text in place of arguments."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def function(self) -> str:
        """The name by which the model calls it."""
        return function_named(self.name, self.namespace)


def function_named(name: str, namespace: str | None) -> str:
    return name if namespace is None else f"{namespace}.{name}"


@dataclass(frozen=True, slots=True)
class SentTools:
    """The tools of a request: as functions of a chat, as the response repeats them, and by the functions' names."""

    functions: tuple[dict[str, Any], ...] = ()
    echoed: tuple[dict[str, Any], ...] = ()
    origins: Mapping[str, ToolOrigin] = field(default_factory=dict)


def read_sent_tools(fields: Fields, name: str) -> SentTools:
    """Read functions, custom tools and namespaces of them. Other kinds run at OpenAI: they are left out and noted."""
    names: set[str] = set()
    functions, echoed, origins = [], [], {}
    for tool in fields.objects(name, MAX_TOOLS):
        sent_echo, found = None, list(read_tool(tool, names))
        for origin, function in found:
            functions.append({"type": "function", "function": function})
            origins[origin.function] = origin
            sent_echo = function_echo(function) if tool.data["type"] == FUNCTION_KIND else dict(tool.data)
        if sent_echo is not None:
            echoed.append(sent_echo)
    if len(functions) > MAX_TOOLS:
        raise fields.wrong(name, f"may hold at most {MAX_TOOLS} functions, those of namespaces too")
    return SentTools(tuple(functions), tuple(echoed), origins)


def function_echo(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": FUNCTION_KIND, "description": None, "parameters": None, "strict": False} | dict(function)


def read_tool(
    tool: Fields, names: set[str], namespace: str | None = None
) -> Iterator[tuple[ToolOrigin, dict[str, Any]]]:
    """Yield the functions that a tool stands for. `names` are those of the functions before it."""
    kind = tool.text("type")
    if kind == FUNCTION_KIND or (kind is None and namespace is not None):
        read_definition(tool, names, namespaced(namespace))
        definition = {name: tool.data[name] for name in SHOWN if tool.data.get(name) is not None}
        origin = ToolOrigin(tool.data["name"], namespace)
        yield origin, definition | {"name": origin.function}
    elif kind == CUSTOM:
        read_definition(tool, names, namespaced(namespace))
        origin = ToolOrigin(tool.data["name"], namespace, is_custom=True)
        yield origin, custom_function(tool) | {"name": origin.function}
    elif kind == NAMESPACE and namespace is None:
        name = tool.required_text("name")
        tool.text("description")
        for inner in tool.objects("tools", MAX_TOOLS):
            yield from read_tool(inner, names, name)
    elif tool.ignored.strict or kind is None:
        says = f"is {kind!r:.100}, which runs at OpenAI or in its clients: give {', '.join(KINDS)}"
        raise tool.wrong("type", says, UNSUPPORTED)
    else:
        tool.ignored.note(f"{tool.path}{kind}")
        return
    tool.ignore_rest()


def namespaced(namespace: str | None) -> str:
    return function_named("", namespace)


def custom_function(tool: Fields) -> dict[str, Any]:
    """Return a custom tool as a function of one text. The grammar that the text is to follow is told and not
    enforced."""
    text: dict[str, Any] = {"type": "string"}
    text_format = tool.object("format")
    if text_format is not None:
        definition, syntax = text_format.text("definition"), text_format.text("syntax")
        if definition:
            text["description"] = f"A text of this grammar ({syntax or 'lark'}):\n{definition}"
            tool.without_effect("format")
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
    description = tool.data.get("description")
    return ({} if description is None else {"description": description}) | {"parameters": parameters}


def check_kind(tool: Fields) -> None:
    kind = tool.text("type")
    if kind not in (FUNCTION_KIND, CUSTOM):
        says = f"is {kind!r:.100}, which runs at OpenAI or in its clients: here only functions are supported"
        raise tool.wrong("type", says, UNSUPPORTED)


def read_function_choice(fields: Fields, name: str) -> ToolChoice:
    return choice_of(fields, name, read_named)


def read_named(choice_fields: Fields) -> ToolChoice:
    if choice_fields.data.get("type") == ALLOWED:
        choice_fields.take("type")
        return read_allowed_tools(choice_fields, function_name)
    return ToolChoice("required", function_name(choice_fields))


def function_name(tool: Fields) -> str:
    check_kind(tool)
    name = function_named(tool.required_text("name"), tool.text("namespace"))
    tool.ignore_rest()
    return name


def read_text_format(fields: Fields, name: str) -> OutputStructure | None:
    """Read a format, in which a schema is described one level higher than in a chat's."""
    format_fields = fields.required_object(name)
    return read_described(format_fields) if format_fields.text("type") == "json_schema" else read_format(fields, name)


def function_choice_schema() -> Schema:
    named_function = opened(["type", "name"], type={"const": "function"}, name={"type": "string"})
    some = {"type": "array", "items": named_function, "minItems": 1, "maxItems": MAX_TOOLS}
    among = opened(["type", "mode", "tools"], type={"const": ALLOWED}, mode={"enum": list(ALLOWED_MODES)}, tools=some)
    named_shown, among_shown = '`{"type": "function", "name": …}`', '`{"type": "allowed_tools", "tools": …, "mode": …}`'
    title = f'`"auto"`, `"none"`, `"required"`, {named_shown} or {among_shown}'
    return {"title": title, "anyOf": [{"enum": list(MODES)}, named_function, among]}


def text_format_schema() -> Schema:
    name: Schema = {"type": "string", "minLength": 1}
    json_schema = closed(
        ["type", "name", "schema"],
        type={"const": "json_schema"},
        name=name,
        schema=SCHEMA,
        description=TEXT,
        strict={"type": ["boolean", "null"]},
    )
    return {
        "title": "what the answer has to be, as `docs/guide/responses.md` shows",
        "oneOf": [closed(["type"], type={"enum": ["text", "json_object"]}), json_schema],
    }


TEXT_OPTIONS = (
    Parameter(
        "format", ShapedType(read_text_format, text_format_schema()), "free text, JSON, or JSON that follows a schema"
    ),
    Parameter("verbosity", TextType(0, MAX_OPTION), "a variable of the template, where it reads it"),
)
DESCRIBED = opened(["type", "name"], type={"const": FUNCTION_KIND}, **FUNCTION)
CUSTOM_TOOL = opened(["type", "name"], type={"const": CUSTOM}, name=FUNCTION["name"], description=TEXT)
HELD: Schema = {"type": "array", "items": {"anyOf": [DESCRIBED, CUSTOM_TOOL]}, "maxItems": MAX_TOOLS}
NAMESPACED = opened(["type", "name"], type={"const": NAMESPACE}, name={"type": "string"}, description=TEXT, tools=HELD)
SENT = tools_schema("functions, custom tools and namespaces", {"anyOf": [DESCRIBED, CUSTOM_TOOL, NAMESPACED]})
FUNCTIONS = (
    Parameter("tools", ShapedType(read_sent_tools, SENT), "functions that the model may call; of other kinds none", ()),
    Parameter(
        "tool_choice", ShapedType(read_function_choice, function_choice_schema()), "whether one is called, and which"
    ),
    Parameter("text", OptionsType(TEXT_OPTIONS), "of the answer's text"),
)
