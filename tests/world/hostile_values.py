# SPDX-License-Identifier: Apache-2.0
"""Values for the fields of a request, drawn from the product's own schema: such as fit, and such as do not."""

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

# Fields that say how long an answer may be, and the most that is asked for: what is costly is not what is tried here.
BUDGETS, MOST_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"), 6
MODEL = "tiny"
# Numbers of optional fields of a body, at most, and of its values that are wrong.
MOST_FIELDS, WRONG = (0, 1, 2, 6), (0, 0, 1, 1, 2)
DEPTH = 4
TEXTS = (
    "", "a", "hello", "é\u0301", "\U0001f600", "\u202e", "\x00", " " * 300, "{{ x }}", "{% for %}", "<|im_end|>",
    "../../a", "x" * 5000, "a\r\nb: c",
)  # fmt: skip
SCHEMAS: tuple[Any, ...] = (
    True, {}, {"type": "object"}, {"type": "thing"}, {"$ref": "#"}, {"$ref": "#/$defs/a"}, {"enum": []},
    {"type": "string", "pattern": "(a+)+$"}, {"type": "integer", "minimum": 9, "maximum": 1},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 5}, {"allOf": [{"type": "string"}, {"type": "number"}]},
    {"type": "object", "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "required": ["a"]},
    {"type": "number", "multipleOf": 1e-300}, {"type": "string", "format": "email"},
)  # fmt: skip
GRAMMARS = (
    "", "start: ", 'start: "a" start | "b"', "root ::= root", "start: /(a{1,999}){1,999}/", "[a-z]{3}", "(?=a)", "(a",
    "\\d+(\\.\\d+)?", "start: a\na: b\nb: a",
)  # fmt: skip


def takes_numbers(schema: dict[str, Any] | None) -> bool:
    return schema is not None and "integer" in schema.get("type", ())


def nested(depth: int, wide: bool) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"items": value, "type": "array"} if wide else [value]
    return value


class HostileValues:
    """The values of one client."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.odd: tuple[Callable[[], Any], ...] = (
            lambda: None, lambda: chance.choice((True, False)),
            lambda: chance.choice((0, -1, 1 << 31, 1 << 63, 10**40)), lambda: chance.choice((1e308, -0.0, 5e-324, 0.5)),
            lambda: chance.choice(TEXTS), lambda: [], lambda: {},
            lambda: chance.choice(GRAMMARS), lambda: chance.choice(SCHEMAS), lambda: [[]], lambda: [None],
            lambda: nested(chance.choice((3, 60, 400)), chance.random() < 0.5), lambda: [7] * chance.choice((70, 5000)),
            lambda: dict.fromkeys(TEXTS, 1), lambda: [chance.choice(TEXTS)] * 65, lambda: {"type": "text"},
            lambda: {"type": "json_schema", "json_schema": {"name": "a", "schema": chance.choice(SCHEMAS)}},
            lambda: {"json": chance.choice(SCHEMAS)}, lambda: {"grammar": chance.choice(GRAMMARS)},
            lambda: {"regex": chance.choice(GRAMMARS)}, lambda: [{"role": "user", "content": chance.choice(TEXTS)}],
        )  # fmt: skip

    def body(self, schema: dict[str, Any]) -> Any:
        """Return a body that fits the schema but for a few values."""
        if "anyOf" in schema:
            schema = self.chance.choice(schema["anyOf"])
        made, tokens = self.object_of(schema, 0, self.chance.choice(MOST_FIELDS)), self.chance.randint(1, MOST_TOKENS)
        made |= {name: tokens for name in BUDGETS if takes_numbers(schema["properties"].get(name))}
        made |= {"model": MODEL} if "model" in made else {}
        made |= self.usual(schema["properties"])
        made = deepcopy(made)
        for _ in range(self.chance.choice(WRONG)):
            self.spoil(made, schema)
        return made if self.chance.random() < 0.97 else self.wrong()

    def usual(self, properties: dict[str, Any]) -> dict[str, Any]:
        """Return fields as clients usually have them: a schema says too little of messages and grammars."""
        chance = self.chance
        message = {"role": "user", "content": chance.choice(TEXTS[1:])}
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": chance.choice(SCHEMAS)}}
        made = {
            "messages": (0.7, [message]), "response_format": (0.1, form),
            "structured_outputs": (0.1, {"regex": chance.choice(GRAMMARS)}),
            "ebnf": (0.05, chance.choice(GRAMMARS)), "json_schema": (0.05, chance.choice(SCHEMAS)),
        }  # fmt: skip
        return {name: value for name, (share, value) in made.items() if name in properties and chance.random() < share}

    def spoil(self, body: dict[str, Any], schema: dict[str, Any]) -> None:
        """Make one value wrong, or one inside of it."""
        holder: Any = body
        place: Any = self.chance.choice(list(schema["properties"]))
        while holder is not body or place in body:
            inner = holder[place]
            if not isinstance(inner, (dict, list)) or not inner or self.chance.random() < 0.4:
                break
            holder, place = inner, self.chance.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        holder[place] = self.wrong()

    def wrong(self) -> Any:
        return deepcopy(self.chance.choice(self.odd)())

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Return a value that the schema describes."""
        chance = self.chance
        if not isinstance(schema, dict) or not schema:
            return chance.choice((1, "a", {"a": 1}))
        for words in ("anyOf", "oneOf"):
            if words in schema:
                return self.value(chance.choice(schema[words]), depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return chance.choice(schema["enum"])
        kind = schema.get("type", "object")
        kind = chance.choice(kind) if isinstance(kind, list) else kind
        makers: dict[str, Callable[[], Any]] = {
            "null": lambda: None, "boolean": lambda: chance.random() < 0.5, "string": lambda: self.text_of(schema),
            "integer": lambda: int(self.number_of(schema)), "number": lambda: self.number_of(schema),
            "array": lambda: self.array_of(schema, depth), "object": lambda: self.object_of(schema, depth, 2),
        }  # fmt: skip
        return makers[kind]()

    def number_of(self, schema: dict[str, Any]) -> float:
        low: float = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high: float = schema.get("maximum", low + 1000)
        return high if self.chance.random() < 0.1 else min(low + self.chance.choice((0, 1, 1, 2, 5)), high)

    def text_of(self, schema: dict[str, Any]) -> str:
        if self.chance.random() < 0.3:
            return self.chance.choice(TEXTS)
        most, least = int(schema.get("maxLength", 2)), int(schema.get("minLength", 1))
        return "ab"[:most] * max(1, least)

    def array_of(self, schema: dict[str, Any], depth: int) -> list[Any]:
        count = max(schema.get("minItems", 0), 1 if depth > DEPTH else self.chance.choice((1, 1, 2, 3)))
        return [self.value(schema.get("items", {"type": "integer"}), depth + 1) for _ in range(count)]

    def object_of(self, schema: dict[str, Any], depth: int, most: int) -> dict[str, Any]:
        properties: dict[str, Any] = schema.get("properties", {})
        names = dict.fromkeys(schema.get("required", ()))
        if properties and depth <= DEPTH:
            names |= dict.fromkeys(self.chance.choices(list(properties), k=self.chance.randrange(most + 1)))
        made = {name: self.value(properties.get(name, {}), depth + 1) for name in names}
        return made or ({"a": 1} if schema.get("minProperties") else {})
