# SPDX-License-Identifier: Apache-2.0
"""Tools and the choice among them as /v1/messages describes them, read into the forms of a chat. Pure."""

from dataclasses import dataclass
from typing import Any

from pontil.http.anthropic.content_blocks import UNSUPPORTED, finish_block
from pontil.http.fields.tools import FUNCTION, ToolChoice, read_definition, tools_schema
from pontil.http.schema.message_schema import MAX_TOOLS
from pontil.http.schema.parameter import Schema, opened
from pontil.http.schema.reader import Fields

CUSTOM, SCHEMA = "custom", "input_schema"
MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


@dataclass(frozen=True, slots=True)
class SentChoice:
    """The choice among the tools, and whether an answer may call several."""

    choice: ToolChoice
    parallel: bool


def read_tools(fields: Fields, name: str) -> tuple[dict[str, Any], ...]:
    """Return the tools as a chat has them. Those with a type of Anthropic's run there or in its clients: they are left
    out and noted."""
    names: set[str] = set()
    tools = []
    for tool in fields.objects(name, MAX_TOOLS):
        kind = tool.text("type")
        if kind not in (None, CUSTOM):
            if tool.ignored.strict:
                says = f"is {kind!r:.100}, which is not served: describe a tool by name and {SCHEMA}"
                raise tool.wrong("type", says, UNSUPPORTED)
            tool.ignored.note(f"{tool.path}{kind}")
            continue
        read_definition(tool, names, parameters=SCHEMA)
        finish_block(tool)
        shown = {key: tool.data[key] for key in ("name", "description", "strict") if tool.data.get(key) is not None}
        if tool.data.get(SCHEMA) is not None:
            shown["parameters"] = tool.data[SCHEMA]
        tools.append({"type": "function", "function": shown})
    return tuple(tools)


def read_choice(fields: Fields, name: str) -> SentChoice:
    choice_fields = fields.required_object(name)
    kind = choice_fields.text("type")
    if kind not in MODES:
        raise choice_fields.unfit("type", kind, f"one of {', '.join(MODES)}")
    tool = choice_fields.required_text("name") if kind == "tool" else None
    is_single = choice_fields.boolean("disable_parallel_tool_use", False)
    choice_fields.ignore_rest()
    return SentChoice(ToolChoice(MODES[kind], tool), not is_single)  # type: ignore[arg-type]  # one of its modes


TOOL = opened(
    ["name"],
    type={"enum": [CUSTOM, None]},
    name=FUNCTION["name"],
    description=FUNCTION["description"],
    input_schema=FUNCTION["parameters"],
)
TOOLS = tools_schema("tools", TOOL)
CHOICE: Schema = {
    "title": '`{"type": …}` of `auto`, `any`, `none` or, with a `name`, `tool`',
    "anyOf": [
        opened(
            ["type"],
            type={"enum": [kind for kind in MODES if kind != "tool"]},
            disable_parallel_tool_use={"type": ["boolean", "null"]},
        ),
        opened(["type", "name"], type={"const": "tool"}, name={"type": "string"}),
    ],
}
