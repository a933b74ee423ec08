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
    """Yield the messages with calls and results of functions as those of tools. Calls and results without ids get them,
    which some templates ask for: a result that of the call before it with its name, or of the first one."""
    # Calls without a result.
    waiting: list[tuple[str, str]] = []
    for number, message in enumerate(messages):
        if FUNCTION_CALL in message:
            calls = [{"type": "function", "function": message[FUNCTION_CALL]}]
            message = {name: value for name, value in message.items() if name != FUNCTION_CALL} | {"tool_calls": calls}
        elif message["role"] == ROLE:
            message = message | {"role": "tool"}
        if "tool_calls" in message:
            calls = [call_id(number, place) | call for place, call in enumerate(message["tool_calls"])]
            waiting = [(call["function"]["name"], call["id"]) for call in calls]
            message = message | {"tool_calls": calls}
        elif message["role"] == "tool" and "tool_call_id" not in message:
            answered = next((call for call in waiting if message.get("name") in (None, call[0])), None)
            if answered is not None:
                waiting.remove(answered)
            identity = call_id(number, 0)["id"] if answered is None else answered[1]
            message = message | {"tool_call_id": identity}
        yield message


def call_id(number: int, place: int) -> dict[str, str]:
    """Return the id of a call in the message of this number: nine letters and digits, as the strictest templates want
    them."""
    return {"id": f"c{number:04}{place:04}" if place else f"call{number:05}"}


def choice_schema() -> Schema:
    named_function = opened(["name"], name={"type": "string"})
    return {"title": '`"auto"`, `"none"` or `{"name": …}`', "anyOf": [{"enum": list(MODES)}, named_function]}


DESCRIBED = tools_schema("functions", opened(["name"], **FUNCTION))
OLDER_TOOLS = (
    Parameter(FUNCTIONS, ShapedType(read_functions, DESCRIBED), "the older name of tools", ()),
    Parameter(FUNCTION_CALL, ShapedType(read_choice, choice_schema()), "the older name of tool_choice"),
)
