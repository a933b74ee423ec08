# SPDX-License-Identifier: Apache-2.0
"""The JSON types that a function's parameter may have, by the function's schema. Notations that write a value without
quotes need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# References and alternatives that are followed from one another.
MAX_DEPTH = 16
MAX_ALTERNATIVES = 64
UNKNOWN: frozenset[str] = frozenset()
TEXT_ONLY = frozenset({"string"})
FIRSTS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}

Schema = Mapping[str, Any]


def parameter_of(schema: Schema | None, name: str) -> Any:
    properties = (schema or {}).get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def kinds_of(schema: Any, root: Schema | None, depth: int = 0) -> frozenset[str]:
    """The types that a schema within `root` allows; empty if that is unknown."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return UNKNOWN
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list) and kind and all(isinstance(name, str) for name in kind):
        return frozenset(kind)
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return frozenset(map(kind_of_value, values))
    if isinstance(schema.get("$ref"), str):
        return kinds_of(referred(schema["$ref"], root), root, depth + 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list) and 0 < len(schema[word]) <= MAX_ALTERNATIVES:
            kind_sets = [kinds_of(subschema, root, depth + MAX_DEPTH // 4) for subschema in schema[word]]
            return frozenset().union(*kind_sets) if all(kind_sets) else UNKNOWN
    inner = schema.get("allOf")
    if isinstance(inner, list) and len(inner) == 1:
        return kinds_of(inner[0], root, depth + 1)
    return UNKNOWN


def referred(reference: str, root: Schema | None) -> Any:
    """The schema at a reference like `#/$defs/City`; None if there is none."""
    if not reference.startswith("#/"):
        return None
    target: Any = root
    for part in reference[2:].split("/")[:MAX_DEPTH]:
        target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
    return target


def kind_of_value(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def kind_of_json(text: str) -> str:
    """The type of a value that is valid JSON."""
    whole = "number" if any(character in text for character in ".eE") else "integer"
    return FIRSTS.get(text[0], whole)


def has_kind(text: str, kinds: frozenset[str]) -> bool:
    """Return whether JSON is of one of these types, but no text; of unknown types any is."""
    kind = kind_of_json(text)
    return kind != "string" and (kinds == UNKNOWN or kind in kinds or (kind == "integer" and "number" in kinds))
