# SPDX-License-Identifier: Apache-2.0
"""Tools and the choice among them as /v1/messages describes them, read into the forms of a chat. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.anthropic.content_blocks import UNSUPPORTED, finish_block, kept_seconds
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


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools as a chat has them. The model is shown the `deferred` ones where a tool_reference names them, and not
    before: they may come and go without changing the beginning of the prompt. What the prompt says of them is to be
    leased for so many `seconds`."""

    tools: tuple[dict[str, Any], ...] = ()
    deferred: frozenset[str] = frozenset()
    seconds: int | None = None

    @property
    def functions(self) -> Mapping[str, dict[str, Any]]:
        return {tool["function"]["name"]: tool["function"] for tool in self.tools}


class ToolReferences:
    """The texts of tool_reference blocks, by which a client that searches among its tools shows what it found. A tool
    is described once, so that a prompt is not longer than what was sent."""

    def __init__(self, offered: OfferedTools) -> None:
        self.functions, self.hidden = offered.functions, set(offered.deferred)

    def read(self, block: Fields) -> str:
        name = block.required_text("tool_name")
        if name not in self.functions:
            raise block.wrong("tool_name", f"is {name!r:.100}, which is none of the tools")
        finish_block(block)
        if name not in self.hidden:
            return f"The function {name} can be called."
        self.hidden.remove(name)
        described = json.dumps(self.functions[name], ensure_ascii=False)
        return f"<functions>\n<function>{described}</function>\n</functions>"


def read_tools(fields: Fields, name: str) -> OfferedTools:
    """Read the tools. Those with a type of Anthropic's run there or in its clients: they are left out and noted."""
    names: set[str] = set()
    tools, deferred, seconds = [], set[str](), None
    for tool in fields.objects(name, MAX_TOOLS):
        kind = tool.text("type")
        if kind not in (None, CUSTOM):
            if tool.ignored.strict:
                says = f"is {kind!r:.100}, which is not served: describe a tool by name and {SCHEMA}"
                raise tool.wrong("type", says, UNSUPPORTED)
            tool.ignored.note(f"{tool.path}{kind}")
            continue
        read_definition(tool, names, parameters=SCHEMA)
        if tool.boolean("defer_loading", False):
            deferred.add(tool.data["name"])
        finish_block(tool)
        seconds = max(seconds or 0, kept_seconds(tool) or 0) or None
        shown = {key: tool.data[key] for key in ("name", "description", "strict") if tool.data.get(key) is not None}
        if tool.data.get(SCHEMA) is not None:
            shown["parameters"] = tool.data[SCHEMA]
        tools.append({"type": "function", "function": shown})
    return OfferedTools(tuple(tools), frozenset(deferred), seconds)


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
    defer_loading={"type": ["boolean", "null"]},
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
