# SPDX-License-Identifier: Apache-2.0
"""A bound on the regular expressions that one text must follow at once, checked before anything is compiled.

llguidance takes 2^n steps and bytes for the next state of an intersection of n expressions, and checks its limits only
afterwards: 22 of them are 13 s and 1 GiB, in the worker's step, wherever in the text they begin. A dozen take some
milliseconds. Nothing else that was tried grows like that: alternatives, repetitions, complements, `patternProperties`
(which may not overlap) and rules.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pontil.runtime.errors import RequestError

MOST_PATTERNS = 12
MOST_OPERATORS = 8
# Keywords beside which `$ref`, `anyOf` and `oneOf` stand alone: they say nothing about a value.
ANNOTATIONS = {
    "$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description", "examples",
    "readOnly", "title", "writeOnly",
}  # fmt: skip
CHOICES = {"$ref", "anyOf", "oneOf"}
# Texts, comments and expressions in Lark's notation, in which an operator has no meaning. An expression may hold line
# ends.
QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\])+/')
EMBEDDED = re.compile(r"%json\s*(?=\{)")


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise RequestError for a schema by which more than MOST_PATTERNS patterns may apply to one value. Overestimates:
    if any patterns are combined, all patterns of the schema are counted."""
    nodes = list(objects_in(schema))
    patterns = {pattern for node in nodes for pattern in patterns_of(node)}
    if len(patterns) > MOST_PATTERNS and any(map(brings_together, nodes)):
        raise RequestError(
            f"the schema has {len(patterns)} different patterns and formats, and allOf, or keywords beside $ref, anyOf "
            f"or oneOf, which may ask one value to follow all of them: at most {MOST_PATTERNS} are possible then"
        )


def check_rules(rules: str) -> None:
    """Check a client's rules in Lark's notation. Raises RequestError like `check_schema`."""
    if (operators := QUOTED.sub("", rules).count("&")) > MOST_OPERATORS:
        raise RequestError(f"the rules have {operators} operators &: at most {MOST_OPERATORS} are possible")
    for place in EMBEDDED.finditer(rules):
        try:
            schema, _ = json.JSONDecoder().raw_decode(rules, place.end())
        except (ValueError, RecursionError):
            continue  # the library refuses it later
        check_schema(schema)


def objects_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a value, in any order, without recursion."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            yield node
            stack += node.values()
        elif isinstance(node, list):
            stack += node


def patterns_of(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((name, node[name]) for name in ("pattern", "format") if isinstance(node.get(name), str))
    if isinstance(keys := node.get("patternProperties"), Mapping):
        yield from (("pattern", key) for key in keys)


def brings_together(node: Mapping[str, Any]) -> bool:
    several = isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1
    says = node.keys() - ANNOTATIONS
    return several or (bool(says & (CHOICES | {"allOf"})) and len(says) > 1)
