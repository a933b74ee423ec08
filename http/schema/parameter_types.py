# SPDX-License-Identifier: Apache-2.0
"""The types of parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pontil.http.schema.parameter import Parameter, ParameterType, Schema, object_schema, read_all
from pontil.http.schema.reader import Fields, same


@dataclass(frozen=True, slots=True)
class FlagType:
    """True or false."""

    def read(self, fields: Fields, name: str) -> bool:
        return fields.boolean(name, False)

    def schema(self, vocab_size: int) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class IntegerType:
    """An integer from `low` to `high` inclusive; None: no upper bound."""

    low: int
    high: int | None = None

    def read(self, fields: Fields, name: str) -> int | None:
        return fields.integer(name, self.low, self.high)

    def schema(self, vocab_size: int) -> Schema:
        return {"type": "integer", "minimum": self.low} | ({} if self.high is None else {"maximum": self.high})


@dataclass(frozen=True, slots=True)
class NumberType:
    """A number from `low` to `high` inclusive; `above` excludes `low`."""

    low: float
    high: float
    above: bool = False

    def read(self, fields: Fields, name: str) -> float:
        return fields.number(name, 0.0, self.low, self.high, self.above)

    def schema(self, vocab_size: int) -> Schema:
        return {"type": "number", "exclusiveMinimum" if self.above else "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class TextType:
    """A string of `least` to `most` characters; None: no upper bound."""

    least: int = 0
    most: int | None = None

    def read(self, fields: Fields, name: str) -> str:
        text = fields.text(name) or ""
        if self.most is not None and not self.least <= len(text) <= self.most:
            raise fields.wrong(name, f"must have {self.least} to {self.most} characters, not {len(text)}")
        return text

    def schema(self, vocab_size: int) -> Schema:
        return {"type": "string"} | ({} if self.most is None else {"minLength": self.least, "maxLength": self.most})


@dataclass(frozen=True, slots=True)
class WordType:
    """One of these words."""

    words: tuple[str, ...]

    def read(self, fields: Fields, name: str) -> str:
        text = fields.text(name)
        if text not in self.words:
            raise fields.unfit(name, text, f"one of {', '.join(self.words)}")
        return text

    def schema(self, vocab_size: int) -> Schema:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class ObjectType:
    """Any object."""

    def read(self, fields: Fields, name: str) -> Any:
        inner = fields.required_object(name)
        return inner.data

    def schema(self, vocab_size: int) -> Schema:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class IdsType:
    """At most `most` token ids; `least` 1 refuses an empty list."""

    most: int
    least: int = 0

    def read(self, fields: Fields, name: str) -> tuple[int, ...]:
        ids = fields.integers(name, fields.vocab_size, self.most)
        if len(ids) < self.least:
            raise fields.wrong(name, "is empty: give at least one token id, or leave it out")
        return ids

    def schema(self, vocab_size: int) -> Schema:
        return ids_schema(vocab_size) | {"maxItems": self.most} | ({"minItems": self.least} if self.least else {})


def ids_schema(vocab_size: int) -> Schema:
    return {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}}


@dataclass(frozen=True, slots=True)
class NeutralType:
    """An unsupported parameter whose other values would change the answer: only the `allowed` ones, which have no
    effect, are accepted. `others` is the message for any other value."""

    allowed: tuple[Any, ...] = ()
    others: str = "is not supported yet: leave it out"

    def read(self, fields: Fields, name: str) -> Any:
        value = fields.take(name)
        if not any(same(value, allowed_value) for allowed_value in self.allowed):
            raise fields.wrong(name, self.others, "unsupported_parameter")
        fields.without_effect(name)
        return value

    def schema(self, vocab_size: int) -> Schema:
        return {"enum": list(self.allowed)}


@dataclass(frozen=True, slots=True)
class InertType:
    """A parameter that changes no answer here, whatever its value of this `kind`. A strict server takes only the
    `allowed` values; None: it takes all."""

    kind: ParameterType
    allowed: tuple[Any, ...] | None = ()

    def read(self, fields: Fields, name: str) -> Any:
        if fields.ignored.strict and self.allowed is not None:
            return NeutralType(self.allowed).read(fields, name)
        value = self.kind.read(fields, name)
        fields.without_effect(name)
        return value

    def schema(self, vocab_size: int) -> Schema:
        return self.kind.schema(vocab_size)


@dataclass(frozen=True, slots=True)
class OptionsType:
    """An object with parameters of its own."""

    parameters: tuple[Parameter, ...]

    def read(self, fields: Fields, name: str) -> dict[str, Any]:
        inner = fields.required_object(name)
        return read_all(inner, self.parameters)

    def schema(self, vocab_size: int) -> Schema:
        return object_schema(self.parameters, vocab_size)


@dataclass(frozen=True, slots=True)
class ShapedType:
    """Any other type, with its own reader and schema; the schema's `title` describes it in words."""

    reader: Callable[[Fields, str], Any]
    shape: Schema

    def read(self, fields: Fields, name: str) -> Any:
        return self.reader(fields, name)

    def schema(self, vocab_size: int) -> Schema:
        return self.shape
