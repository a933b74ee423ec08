# SPDX-License-Identifier: Apache-2.0
"""Tools and structured output as /v1/responses describes them, read into the forms of a chat. Pure."""

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
    functions_as_tools,
    read_allowed_tools,
    tools_schema,
)
from pontil.http.openai.chat.prompt import MAX_OPTION
from pontil.http.schema.message_schema import MAX_TOOLS, TEXT
from pontil.http.schema.parameter import Parameter, Schema, opened
from pontil.http.schema.parameter_types import OptionsType, ShapedType, TextType
from pontil.http.schema.reader import Fields

SHOWN = ("name", "description", "parameters", "strict")


def read_functions(fields: Fields, name: str) -> tuple[dict[str, Any], ...]:
    return functions_as_tools(fields, name, SHOWN, check_kind)


def check_kind(tool: Fields) -> None:
    kind = tool.text("type")
    if kind != "function":
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
    name = tool.required_text("name")
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
DESCRIBED = tools_schema("functions", opened(["type", "name"], type={"const": "function"}, **FUNCTION))
FUNCTIONS = (
    Parameter("tools", ShapedType(read_functions, DESCRIBED), "functions that the model may call", ()),
    Parameter(
        "tool_choice", ShapedType(read_function_choice, function_choice_schema()), "whether one is called, and which"
    ),
    Parameter("text", OptionsType(TEXT_OPTIONS), "of the answer's text"),
)
