# SPDX-License-Identifier: Apache-2.0
"""Functions as chats had them before tools: their descriptions, the choice among them, their calls and results in
messages, read into the forms of tools. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pontil.http.fields.tools import FUNCTION, ToolChoice, ToolFields, choice_of, functions_as_tools, tools_schema
from pontil.http.schema.parameter import Parameter, Schema, opened
from pontil.http.schema.parameter_types import ShapedType
from pontil.http.schema.reader import Fields

FUNCTIONS, FUNCTION_CALL, ROLE = "functions", "function_call", "function"
SHOWN = ("name", "description", "parameters")
MODES = ("auto", "none")

Message = dict[str, Any]


def with_functions(fields: Fields, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a chat with its functions as tools, of which an answer calls one at most. Raises
    RequestError where it has both, or a choice that contradicts the functions."""
    functions, choice = values[FUNCTIONS], values[FUNCTION_CALL]
    name = None if choice is None else choice.name
    if name is not None and name not in {function["function"]["name"] for function in functions}:
        raise fields.wrong(FUNCTION_CALL, f"names {name!r:.150}, which is none of the functions")
    if not functions:
        fields.without_effect(FUNCTION_CALL)
        return values
    for tool_field in ("tools", "tool_choice"):
        if values[tool_field]:
            raise fields.wrong(FUNCTIONS, f"and {tool_field} stand for the same: leave out one of the two")
    fields.without_effect("parallel_tool_calls")
    return {**values, "tools": functions, "tool_choice": choice, "parallel_tool_calls": False}


def named_as_functions(tools: ToolFields) -> ToolFields:
    """Return the tools with what they are called in such a request and its answer."""
    return replace(tools, place="functions[%d].", legacy=True)


def read_functions(fields: Fields, name: str) -> tuple[dict[str, Any], ...]:
    return functions_as_tools(fields, name, SHOWN)


def read_choice(fields: Fields, name: str) -> ToolChoice:
    return choice_of(fields, name, read_named, MODES, "an object with a name")


def read_named(choice_fields: Fields) -> ToolChoice:
    choice = ToolChoice("required", choice_fields.required_text("name"))
    choice_fields.ignore_rest()
    return choice


def as_tools(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with calls and results of functions as those of tools. They get ids, which some templates ask
    for: of nine letters and digits, as the strictest of them want."""
    call_ids: dict[str, str] = {}
    for number, message in enumerate(messages):
        identity = f"call{number:05}"
        if FUNCTION_CALL in message:
            function = message[FUNCTION_CALL]
            call_ids[function["name"]] = identity
            calls = [{"id": identity, "type": "function", "function": function}]
            yield {name: value for name, value in message.items() if name != FUNCTION_CALL} | {"tool_calls": calls}
        elif message["role"] == ROLE:
            yield message | {"role": "tool", "tool_call_id": call_ids.get(message["name"], identity)}
        else:
            yield message


def choice_schema() -> Schema:
    named_function = opened(["name"], name={"type": "string"})
    return {"title": '`"auto"`, `"none"` or `{"name": …}`', "anyOf": [{"enum": list(MODES)}, named_function]}


DESCRIBED = tools_schema("functions", opened(["name"], **FUNCTION))
OLDER_TOOLS = (
    Parameter(FUNCTIONS, ShapedType(read_functions, DESCRIBED), "the older name of tools", ()),
    Parameter(FUNCTION_CALL, ShapedType(read_choice, choice_schema()), "the older name of tool_choice"),
)
