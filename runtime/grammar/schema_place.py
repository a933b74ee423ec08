# SPDX-License-Identifier: Apache-2.0
"""Places in a JSON schema: which values in it are schemas, what a reference leads to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

# Keys and indices from the root on.
Place = tuple[str, ...]

# Keywords that hold one schema, a list of schemas, or schemas by name. Values of other keywords are no schemas here.
ONE = ("items", "additionalItems", "additionalProperties")
MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
MAX_HOPS = 16
MAX_SHOWN = 120


def with_inner(schema: Mapping[str, Any], place: Place, change: Callable[[Any, Place], Any]) -> dict[str, Any]:
    """Return the schema with every schema directly in it changed."""
    changed_schema = dict(schema)
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, dict):
            changed_schema[key] = {
                name: change(inner_schema, (*place, key, name)) for name, inner_schema in value.items()
            }
        elif key in MANY and isinstance(value, list):
            changed_schema[key] = [
                change(inner_schema, (*place, key, str(number))) for number, inner_schema in enumerate(value)
            ]
        elif key in ONE:
            changed_schema[key] = change(value, (*place, key))
    return changed_schema


def nodes(schema: Any, place: Place = ()) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every schema that is an object, from the root on, with its place."""
    if isinstance(schema, dict):
        yield place, schema
        inner: list[tuple[Any, Place]] = []
        with_inner(schema, place, lambda inner_schema, where: inner.append((inner_schema, where)))
        for inner_schema, where in inner:
            yield from nodes(inner_schema, where)


def followed(root: Any, schema: Any) -> Any:
    """Return the schema that references within the root lead to; None if one leads nowhere or they do not end."""
    for _ in range(MAX_HOPS):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        schema = target(root, schema["$ref"])
    return None


def target(root: Any, reference: str) -> Any:
    """Return the value that a reference to a place in the root names; None if there is none."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    value = root
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(key)
        else:
            value = value[int(key)] if isinstance(value, list) and key.isdigit() and int(key) < len(value) else None
    return value


def named(place: Place) -> str:
    """Return the place as a JSON pointer, cut if it is long."""
    text = "#" + "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in place)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
