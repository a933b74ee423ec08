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
SCHEMAS = {"parameters", "input_schema"}
SCHEMA = {"type": "object", "properties": {}}
Shape = dict[str, Any]


def cut(value: Any, name: str = "", number: int = 0) -> Any:
    """Return a value with its texts replaced, and of alike items of a list the first."""
    if name in SCHEMAS:
        return SCHEMA
    if isinstance(value, dict):
        return {key: cut(member, key, number) for key, member in value.items()}
    if isinstance(value, list):
        items = [cut(item, name, place) for place, item in enumerate(value)]
        return (
            items
            if name in ("messages", "input")
            else list({form(item): item for item in reversed(items)}.values())[::-1]
        )
    if isinstance(value, str) and name not in WORDS:
        return f"{name}_{number}" if name in ("name", "id", "call_id", "tool_call_id", "tool_use_id") else TEXT
    return value


def form(value: Any) -> str:
    """Return the form of a value, in which names are alike."""
    if isinstance(value, dict):
        return json.dumps({key: form(member) if key != "name" else "" for key, member in value.items()})
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
