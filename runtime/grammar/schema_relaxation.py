# SPDX-License-Identifier: Apache-2.0
"""A JSON schema without what a grammar cannot hold, and the list of what was left out.

The result allows whatever the schema allows. A keyword that says what another one can say, as libraries like to write,
is replaced by that one and not left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pontil.runtime.grammar.schema_place import Place, followed, named, nodes, target, with_inner

# Pieces that the notations write differently, or that begin or end a character class.
PIECES = re.compile(r"\\.|\[\^?\]?|\]|\(\?<(?=[A-Za-z_])|\$|[^\\\[\]($]+|.", re.DOTALL)
REPLACED = {"(?<": "(?P<", "$": r"\Z", r"\/": "/"}
GROUP = re.compile(r"\\k<(\w+)>")
EMPTY_CLASS, ANY_CLASS = "[]", "[^]"


class PythonExpression:
    """One expression. Raises re.error for one that Python does not read."""

    def __init__(self, pattern: str) -> None:
        self.compiled = re.compile(translated(pattern), re.ASCII)

    def found(self, text: str) -> bool:
        """Return whether it matches somewhere in the text."""
        return self.compiled.search(text) is not None


def translated(pattern: str) -> str:
    """Return the expression in Python's notation."""
    pieces, in_class = [], False
    for piece in PIECES.findall(GROUP.sub(r"(?P=\1)", pattern)):
        if in_class:
            in_class = not piece.endswith("]") or piece.startswith("\\")
            pieces.append(f"\\{piece}" if piece.startswith("[") else piece)
        elif piece in (EMPTY_CLASS, ANY_CLASS):
            pieces.append("(?!)" if piece == EMPTY_CLASS else r"[\s\S]")
        else:
            in_class = piece.startswith("[")
            pieces.append(REPLACED.get(piece, piece))
    return "".join(pieces)


# Keywords that say something about a value and that no grammar holds.
UNHELD = (
    "not", "if", "uniqueItems", "contains", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
# Keywords that only complete another one.
COMPLETED: Mapping[str, str] = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
# Formats of OpenAPI that any text has.
ANY_TEXT = ("binary", "password")
# Keywords by which several schemas apply to one object.
APPLICATORS = {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas", "dependencies", "$dynamicRef"}
EVERYTHING: tuple[Any, ...] = ({}, True)
NOTHING: tuple[Any, ...] = ({"not": {}}, {"not": True}, False)
# Values that every instance meets.
EMPTY: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "not": NOTHING,
    "propertyNames": EVERYTHING,
    "unevaluatedProperties": EVERYTHING,
    "unevaluatedItems": EVERYTHING,
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
}
# Trials of small schemas, a millisecond each; beyond, expressions and formats are left out unasked.
MOST_ASKED = 256
# Characters of copies of one schema, of which each name gets one.
MOST_COPIED = 1 << 15
NAMING = {"type", "title", "description", "$schema", "$id"}


class SchemaRelaxation:
    """The relaxation of one schema, whose nesting is bounded. `ask` tells whether a small schema can be held."""

    def __init__(self, root: Mapping[str, Any], ask: Callable[[Mapping[str, Any]], bool]) -> None:
        self.root, self.ask = root, ask
        self.known: dict[str, bool] = {}
        # Places of the keywords that were left out.
        self.left_out: list[Place] = []
        # Formats that are not known: JSON Schema has nobody check them.
        self.unknown_formats: list[Place] = []
        self.schema: Any = self.relaxed(root, ())
        self.schema = self.without_lost_references(self.schema, ())

    def relaxed(self, schema: Any, place: Place) -> Any:
        """Return one schema without what is not held; what is no schema stays, for the compiler to refuse."""
        if not isinstance(schema, dict):
            return schema
        if is_one_of(schema.get("not", False), EVERYTHING):
            return False
        relaxed_schema = closed_by_unevaluated(without_effect(bounded_by_enum(schema)))
        relaxed_schema = self.without_unheld(self.named_properties(relaxed_schema), place)
        relaxed_schema = self.with_held_names(self.with_held_texts(relaxed_schema, place), place)
        return with_inner(relaxed_schema, place, self.relaxed)

    def named_properties(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Say by `properties` or `patternProperties` what `propertyNames` says of an object without either."""
        names = followed(self.root, schema.get("propertyNames"))
        if not isinstance(names, dict):
            return schema
        reduced_schema, says = without(schema, ["propertyNames"]), names.keys() - NAMING
        if not says and names.get("type", "string") == "string":
            return reduced_schema
        if schema.keys() & {"properties", "patternProperties"}:
            return schema
        value = schema.get("additionalProperties", True)
        if says == {"const"} or (says == {"enum"} and isinstance(names["enum"], list)):
            texts = [name for name in names.get("enum", [names.get("const")]) if isinstance(name, str)]
            if len(texts) * len(json.dumps(value)) > MOST_COPIED:
                return schema
            return reduced_schema | {"properties": dict.fromkeys(texts, value), "additionalProperties": False}
        if says == {"pattern"} and isinstance(names["pattern"], str):
            return reduced_schema | {"patternProperties": {names["pattern"]: value}, "additionalProperties": False}
        return schema

    def without_unheld(self, schema: dict[str, Any], place: Place) -> dict[str, Any]:
        self.left_out += [(*place, key) for key in schema if key in UNHELD]
        return without(schema, [*UNHELD, *COMPLETED])

    def with_held_texts(self, schema: dict[str, Any], place: Place) -> dict[str, Any]:
        """Return the schema without an expression or a format that is not held."""
        kind = {"type": schema["type"]} if "type" in schema else {}
        lost = [
            key
            for key in ("pattern", "format")
            if isinstance(schema.get(key), str) and not self.holds({**kind, key: schema[key]})
        ]
        if "pattern" in lost and is_readable(schema["pattern"]):
            self.left_out.append((*place, "pattern"))
        elif "pattern" in lost:
            lost.remove("pattern")  # for the compiler to refuse
        if "format" in lost and schema["format"] not in ANY_TEXT:
            self.unknown_formats.append((*place, "format"))
        return without(schema, lost)

    def with_held_names(self, schema: dict[str, Any], place: Place) -> dict[str, Any]:
        """Return the schema without expressions for names that are not held: what they allow, any name may have."""
        by_pattern, additional = schema.get("patternProperties"), schema.get("additionalProperties", True)
        if not isinstance(by_pattern, dict):
            return schema
        kept_patterns = [name for name in by_pattern if self.holds({"type": "string", "pattern": name})]
        if not self.holds({"type": "object", "patternProperties": dict.fromkeys(kept_patterns, True)}):
            kept_patterns = []  # they overlap
        lost = [name for name in by_pattern if name not in kept_patterns]
        if not lost or not all(map(is_readable, lost)):
            return schema
        self.left_out += [(*place, "patternProperties", name) for name in lost]
        several = [*(by_pattern[name] for name in lost), *([] if additional is False else [additional])]
        other_schema = several[0] if len(several) == 1 else {"anyOf": several}
        return schema | {
            "patternProperties": {name: by_pattern[name] for name in kept_patterns},
            "additionalProperties": other_schema,
        }

    def holds(self, schema: Mapping[str, Any]) -> bool:
        text = json.dumps(schema)
        if text not in self.known and len(self.known) < MOST_ASKED:
            self.known[text] = self.ask(schema)
        return self.known.get(text, False)

    def without_lost_references(self, schema: Any, place: Place) -> Any:
        """Return the schema without references to what was left out."""
        if not isinstance(schema, dict):
            return schema
        reference = schema.get("$ref")
        if isinstance(reference, str) and target(self.schema, reference) is None and target(self.root, reference):
            schema = without(schema, ["$ref"])
            self.left_out.append((*place, "$ref"))
        return with_inner(schema, place, self.without_lost_references)


def is_readable(pattern: str) -> bool:
    """Return whether an answer can be checked by an expression that no grammar holds."""
    try:
        PythonExpression(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def without(schema: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in keys}


def without_effect(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without keywords that every value meets."""
    idle = [key for key, value in schema.items() if key in EMPTY and is_one_of(value, EMPTY[key])]
    idle += [key for key, needed_keyword in COMPLETED.items() if needed_keyword not in schema]
    return without(schema, idle if schema.keys() & {"then", "else"} else [*idle, "if"])


def is_one_of(value: Any, values: Collection[Any]) -> bool:
    """Return whether a value is one of these; 1 is not true."""
    return any(value == candidate and isinstance(value, bool) == isinstance(candidate, bool) for candidate in values)


def closed_by_unevaluated(schema: dict[str, Any]) -> dict[str, Any]:
    """Say by `additionalProperties` what `unevaluatedProperties` says where no other schema applies to the object."""
    if "unevaluatedProperties" not in schema or schema.keys() & APPLICATORS:
        return schema
    return {"additionalProperties": schema["unevaluatedProperties"]} | without(schema, ["unevaluatedProperties"])


def bounded_by_enum(schema: dict[str, Any]) -> dict[str, Any]:
    """Bound a list without repetitions by the number of values that its items may have."""
    items = schema.get("items")
    if schema.get("uniqueItems") is not True or not isinstance(items, dict) or not isinstance(items.get("enum"), list):
        return schema
    most, max_items = len(items["enum"]), schema.get("maxItems")
    return schema | {"maxItems": min(most, max_items) if type(max_items) is int else most}


def choices_in(schema: Any) -> list[Place]:
    return [place for place, node in nodes(schema) if "oneOf" in node]


def coerced(schema: Any, places: Collection[Place], place: Place = ()) -> Any:
    """Return the schema with `anyOf` for the `oneOf` at these places."""
    if not isinstance(schema, dict):
        return schema
    coerced_schema = with_inner(schema, place, lambda inner, where: coerced(inner, places, where))
    if place not in places:
        return coerced_schema
    reduced_schema, either = without(coerced_schema, ["oneOf"]), {"anyOf": coerced_schema["oneOf"]}
    return reduced_schema | (
        either if "anyOf" not in reduced_schema else {"allOf": [*reduced_schema.get("allOf", []), either]}
    )


def described(place: Place) -> str:
    """Name a keyword and the place where it stands."""
    *path, keyword = place
    if path and path[-1] == "patternProperties":
        path, keyword = path[:-1], "patternProperties"
    return f"{keyword} at {named(tuple(path))}"
