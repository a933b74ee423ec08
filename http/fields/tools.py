# SPDX-License-Identifier: Apache-2.0
"""The tools of a request and the choice among them. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pontil.http.fields.structured_output import is_deep
from pontil.http.schema.message_schema import MAX_TOOLS, TEXT
from pontil.http.schema.parameter import Parameter, Schema, opened
from pontil.http.schema.parameter_types import FlagType, ShapedType
from pontil.http.schema.reader import Fields

MODES = ("auto", "none", "required")
ALLOWED = "allowed_tools"
ALLOWED_MODES = ("auto", "required")
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
UNSUPPORTED = "unsupported_parameter"

Mode = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function. `parameters` is a JSON schema of an object, None if it takes none. `strict` asks for arguments that
    follow it."""

    name: str
    parameters: Mapping[str, Any] | None
    strict: bool


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The mode, the `name` of the function that has to be called, if one is named, and those that may be called; None
    for all."""

    mode: Mode
    name: str | None = None
    allowed: tuple[str, ...] | None = None

    def allows(self, name: str) -> bool:
        return self.allowed is None or name in self.allowed


@dataclass(frozen=True, slots=True)
class ToolFields:
    """The tools of a request. `shown` are the tools as sent, for the template, and `tools` the same parsed; both are
    empty where no call is allowed. With `parallel` a response may hold several calls. `place` is the path of the fields
    of a function with this number; `legacy` tools are functions in the request and its answer."""

    shown: tuple[dict[str, Any], ...]
    tools: tuple[Tool, ...]
    choice: ToolChoice
    parallel: bool
    place: str = field(default="tools[%d].function.", compare=False)
    legacy: bool = False

    def path(self, number: int, name: str) -> str:
        """Return what the request calls this field of a function."""
        return f"{self.place % number}{name}"

    @property
    def functions(self) -> dict[str, Mapping[str, Any] | None]:
        """Names of the functions that may be called, with their parameters."""
        return {tool.name: tool.parameters for tool in self.tools}


def tool_fields(fields: Fields, values: Mapping[str, Any]) -> ToolFields:
    """Build the fields from the values of TOOLS. Raises RequestError for a choice that contradicts the tools."""
    tools: tuple[Tool, ...] = tuple(map(made, values["tools"]))
    choice: ToolChoice = values["tool_choice"] or ToolChoice("auto")
    if choice.mode == "required" and not tools:
        raise fields.wrong("tool_choice", "asks for a call, but there are no tools: give at least one")
    if choice.name is not None and choice.name not in {tool.name for tool in tools}:
        raise fields.wrong("tool_choice", f"names {choice.name!r:.150}, which is none of the tools")
    if not tools:
        fields.without_effect("tool_choice")
    if not tools or choice.mode == "none" or choice.name is not None:
        fields.without_effect("parallel_tool_calls")
    if choice.mode == "none":
        return ToolFields((), (), choice, True)
    unknown = next((name for name in choice.allowed or () if name not in {tool.name for tool in tools}), None)
    if unknown is not None:
        raise fields.wrong("tool_choice", f"allows {unknown!r:.150}, which is none of the tools")
    shown_tools = tuple(tool for tool in values["tools"] if choice.allows(tool["function"]["name"]))
    return ToolFields(shown_tools, tuple(map(made, shown_tools)), choice, values["parallel_tool_calls"])


def made(tool: Mapping[str, Any]) -> Tool:
    function = tool["function"]
    return Tool(function["name"], function.get("parameters"), bool(function.get("strict")))


def read_tools(fields: Fields, name: str) -> tuple[dict[str, Any], ...]:
    """Validate the tools and return their known fields as sent, since a template renders them."""
    names: set[str] = set()
    tools: list[dict[str, Any]] = []
    for tool in fields.objects(name, MAX_TOOLS):
        function = read_function(tool)
        read_definition(function, names)
        function.ignore_rest()
        tool.ignore_rest()
        tools.append(tool.known | {"function": function.known})
    return tuple(tools)


def functions_as_tools(fields: Fields, name: str, shown: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Validate functions that stand alone, and return them as tools with these of their fields."""
    names: set[str] = set()
    tools = []
    for function in fields.objects(name, MAX_TOOLS):
        read_definition(function, names)
        function.ignore_rest()
        definition = {field: function.data[field] for field in shown if function.data.get(field) is not None}
        tools.append({"type": "function", "function": definition})
    return tuple(tools)


def read_definition(function: Fields, names: set[str], prefix: str = "", parameters: str = "parameters") -> None:
    """Validate a function's own fields, of which `parameters` has the schema, and add its name, behind this prefix, to
    `names`, those of the functions before it."""
    name = prefix + function.required_text("name")
    if NAME.fullmatch(name) is None:
        raise function.wrong("name", "must have 1 to 128 of the characters A-Z a-z 0-9 _ . : / -")
    if name in names:
        raise function.wrong("name", f"is {name!r}, as another tool's is: give each its own")
    names.add(name)
    function.text("description")
    read_parameters(function, parameters)
    function.boolean("strict", False)


def read_parameters(function: Fields, name: str) -> None:
    schema = function.object(name)
    if schema is not None and schema.data.get("type", "object") != "object":
        raise schema.wrong("type", 'must be "object": arguments have names')
    if schema is not None and is_deep(schema.data):
        raise function.wrong(name, "is nested too deeply: no tool needs that")


def read_function(fields: Fields) -> Fields:
    if (kind := fields.text("type")) not in (None, "function"):
        raise fields.unfit("type", kind, '"function", the only type that is supported', UNSUPPORTED)
    function = fields.required_object("function")
    return function


def read_choice(fields: Fields, name: str) -> ToolChoice:
    return choice_of(fields, name, read_named)


def choice_of(
    fields: Fields,
    name: str,
    parser: Callable[[Fields], ToolChoice],
    modes: Sequence[str] = MODES,
    other_forms: str = "name a function",
) -> ToolChoice:
    """Return the choice of a mode, or what `parser` makes of an object."""
    value = fields.take(name)
    if isinstance(value, dict):
        return parser(fields.required_object(name))
    if not isinstance(value, str) or value not in modes:
        raise fields.unfit(name, value, f"one of {', '.join(modes)}, or {other_forms}", UNSUPPORTED)
    return ToolChoice(value)  # type: ignore[arg-type]  # one of MODES


def read_named(choice_fields: Fields) -> ToolChoice:
    if choice_fields.data.get("type") == ALLOWED:
        return read_allowed(choice_fields)
    return ToolChoice("required", function_name(choice_fields))


def read_allowed(choice_fields: Fields) -> ToolChoice:
    """Read a choice among some of the tools; the others are not shown to the model."""
    choice_fields.take("type")
    allowed_tools = choice_fields.required_object(ALLOWED, "is missing: give an object with a mode and a list of tools")
    choice = read_allowed_tools(allowed_tools, function_name)
    choice_fields.ignore_rest()
    return choice


def read_allowed_tools(allowed_tools: Fields, name_of: Callable[[Fields], str]) -> ToolChoice:
    """Read the mode and the tools of such a choice, where `name_of` reads a tool's name."""
    mode = allowed_tools.text("mode")
    if mode not in ALLOWED_MODES:
        raise allowed_tools.wrong("mode", f"must be one of {', '.join(ALLOWED_MODES)}")
    names = [name_of(tool) for tool in allowed_tools.objects("tools", MAX_TOOLS)]
    if not names:
        raise allowed_tools.wrong("tools", "is empty: name at least one of the tools")
    allowed_tools.ignore_rest()
    return ToolChoice("required" if mode == "required" else "auto", allowed=tuple(names))


def function_name(tool: Fields) -> str:
    function = read_function(tool)
    name = function.required_text("name")
    function.ignore_rest()
    tool.ignore_rest()
    return name


FUNCTION: dict[str, Schema] = {
    "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
    "description": TEXT,
    "parameters": {"type": ["object", "null"], "properties": {"type": {"const": "object"}}},
    "strict": {"type": ["boolean", "null"]},
}


def tools_schema(name: str, tool: Schema) -> Schema:
    return {"title": f"{name}, at most {MAX_TOOLS}", "type": "array", "items": tool, "maxItems": MAX_TOOLS}


def choice_schema() -> Schema:
    function = opened(["name"], name={"type": "string"})
    named_tool = opened(["function"], type={"enum": ["function", None]}, function=function)
    some = {"type": "array", "items": named_tool, "minItems": 1, "maxItems": MAX_TOOLS}
    allowed_tools = opened(["mode", "tools"], mode={"enum": list(ALLOWED_MODES)}, tools=some)
    among = opened(["type", ALLOWED], type={"const": ALLOWED}, allowed_tools=allowed_tools)
    named_shown = '`{"type": "function", "function": {"name": …}}`'
    title = f'`"auto"`, `"none"`, `"required"`, {named_shown} or `{{"type": "allowed_tools", "allowed_tools": …}}`'
    return {"title": title, "anyOf": [{"enum": list(MODES)}, named_tool, among]}


TOOL = opened(["function"], type={"enum": ["function", None]}, function=opened(["name"], **FUNCTION))
TOOLS = (
    Parameter("tools", ShapedType(read_tools, tools_schema("tools", TOOL)), "functions that the model may call", ()),
    Parameter("tool_choice", ShapedType(read_choice, choice_schema()), "whether a function is called, and which"),
    Parameter("parallel_tool_calls", FlagType(), "whether an answer may hold several calls", True),
)
