# SPDX-License-Identifier: Apache-2.0
"""Requests of coding agents as shapes: all members, and texts cut away, so that nobody's prompt is kept."""

import json
from collections.abc import Mapping
from typing import Any

from served import ROOT

FILE = ROOT / "tests" / "http" / "agent_requests.json"
TEXT = "text"
# Members whose texts are words of the API.
WORDS = {
    "type",
    "role",
    "effort",
    "display",
    "keep",
    "tool_choice",
    "include",
    "summary",
    "reasoning_effort",
    "verbosity",
}
# Members whose texts name something, which others refer to.
NAMES = {"name", "id", "call_id", "tool_call_id", "tool_use_id", "tool_name"}
SCHEMAS = {"parameters", "input_schema"}
SCHEMA = {"type": "object", "properties": {}}
# Lists of which each item has its place.
CONVERSATIONS = {"messages", "input"}
Shape = dict[str, Any]


def cut(value: Any, name: str = "", known: dict[str, str] | None = None) -> Any:
    """Return a value with its texts replaced, and of alike items of a list the first. `known` are the names so far."""
    known = {} if known is None else known
    if name in SCHEMAS:
        return SCHEMA
    if isinstance(value, dict):
        return {key: cut(member, key, known) for key, member in value.items()}
    if isinstance(value, list):
        items = [cut(item, name, known) for item in value]
        return items if name in CONVERSATIONS else first_of_each_form(items)
    if isinstance(value, str) and name in NAMES:
        return known.setdefault(value, f"name_{len(known)}")
    return TEXT if isinstance(value, str) and name not in WORDS else value


def first_of_each_form(items: list[Any]) -> list[Any]:
    return list({form(item): item for item in reversed(items)}.values())[::-1]


def form(value: Any) -> str:
    """Return the form of a value, in which names are alike."""
    if isinstance(value, dict):
        return json.dumps({key: form(member) for key, member in value.items() if key not in NAMES})
    return json.dumps(value)


def write_shapes(shapes: Mapping[str, Shape]) -> None:
    kept = recorded() | dict(shapes)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept))
    FILE.write_text(f"{{\n{lines}\n}}\n")


def recorded() -> dict[str, Shape]:
    """Return by the agents' names the `path` that each asked, the `body` of its first request with tools, and what its
    answer named in x-pontil-`ignored`."""
    shapes: dict[str, Shape] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return shapes
