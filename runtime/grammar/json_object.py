# SPDX-License-Identifier: Apache-2.0
"""The schema of a JSON object of which nothing is asked. Its depth and the sizes of its parts are bounded.

A small model repeats itself, and without a bound the same member or item comes again until the answer is cut. The
bounds are lower the deeper a part is nested, since a part is repeated with all that it holds. Strings have none: an
answer may be one long text in an object.
"""

from __future__ import annotations

from typing import Any

# The most members of an object, and items of a list in it, by the number of objects around.
MOST_MEMBERS = (128, 64, 32, 32, 16, 16, 8, 8)
MOST_ITEMS = (512, 256, 128, 64, 32, 16, 8, 8)
FLAT = "value"


def bounded_object() -> dict[str, Any]:
    flat = {"type": ["string", "number", "boolean", "null"]}
    objects = {name(level): object_at(level) for level in range(len(MOST_MEMBERS))}
    return {"$ref": reference(name(0)), "$defs": {FLAT: flat} | objects}


def object_at(level: int) -> dict[str, Any]:
    """Return the schema of an object in `level` others. A list in it holds objects, flat values and lists of these."""
    row = {"type": "array", "items": {"$ref": reference(FLAT)}, "maxItems": MOST_ITEMS[level]}
    inner = [{"$ref": reference(FLAT)}]
    if level + 1 < len(MOST_MEMBERS):
        inner.append({"$ref": reference(name(level + 1))})
    several = {"type": "array", "items": {"anyOf": [*inner, row]}, "maxItems": MOST_ITEMS[level]}
    value = {"anyOf": [*inner, several]}
    return {"type": "object", "additionalProperties": value, "maxProperties": MOST_MEMBERS[level]}


def name(level: int) -> str:
    return f"object{level}"


def reference(name: str) -> str:
    return f"#/$defs/{name}"
