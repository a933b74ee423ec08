# SPDX-License-Identifier: Apache-2.0
"""The check of a finished answer against a JSON schema, in a child process (`check_child.py`) that bounds its cost.

Nothing is fetched: a reference beyond the schema and the published meta-schemas leads nowhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from jsonschema import Draft7Validator, Draft201909Validator, Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend, validator_for
from jsonschema_specifications import REGISTRY
from llguidance import LLTokenizer

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.byte_matcher import ByteMatcher, byte_words
from pontil.runtime.grammar.grammar_text import grammar_of_schema
from pontil.runtime.grammar.processes.verdict import NOT_JSON, Verdict
from pontil.runtime.grammar.schema_place import named
from pontil.runtime.grammar.schema_relaxation import PythonExpression


class UncheckableExpression(Exception):
    """An expression that neither the grammar's library nor Python reads."""


class AnswerCheck:
    """A check of texts against schemas. Expressions and formats mean what they mean in grammars, so that both agree on
    whatever a grammar held; the rest is read by Python."""

    def __init__(self) -> None:
        self.words: LLTokenizer = byte_words()

    def verdict(self, schema: Mapping[str, Any] | bool, text: str) -> Verdict:
        try:
            value = json.loads(text, parse_constant=refuse)
        except json.JSONDecodeError:
            return Verdict.not_met(NOT_JSON)
        except (ValueError, RecursionError):
            return Verdict.not_checked("the answer is nested too deep, or has a number that is too long")
        try:
            return self.judged(schema, value)
        except UncheckableExpression as error:
            return Verdict.not_checked(str(error))
        except Exception as error:
            # A schema may be wrong in ways that no grammar minds; the library raises what Python raises then.
            return Verdict.not_checked(f"the schema cannot be followed: {type(error).__name__}")

    def judged(self, schema: Mapping[str, Any] | bool, value: Any) -> Verdict:
        dialect = validator_for(schema, default=OlderNotation)
        error = next(self.validator(dialect, schema).iter_errors(value), None)
        if error is None:
            return Verdict.met()
        return Verdict.not_met(f"{error.validator or 'false'} at {named(tuple(map(str, error.absolute_path)))}")

    def validator(self, dialect: Any, schema: Mapping[str, Any] | bool) -> Any:
        texts = HeldTexts(self.words)
        own_checks = {
            "pattern": texts.pattern,
            "patternProperties": texts.pattern_properties,
            "format": texts.format,
            "multipleOf": multiple_of,
            "additionalProperties": texts.additional_properties,
        }
        supported_checks = {key: check for key, check in own_checks.items() if key in dialect.VALIDATORS}
        return extend(dialect, supported_checks)(schema, registry=REGISTRY)


class HeldTexts:
    """The keywords about texts, for one schema."""

    def __init__(self, words: LLTokenizer) -> None:
        self.words = words
        self.held: dict[tuple[str, str], ByteMatcher] = {}
        self.others: dict[str, PythonExpression] = {}

    def matcher(self, keyword: str, value: str) -> ByteMatcher:
        key = keyword, value
        if key not in self.held:
            try:
                grammar = grammar_of_schema({"type": "string", keyword: value})
            except RequestError:
                grammar = ""
            self.held[key] = ByteMatcher(grammar, self.words)
        return self.held[key]

    def found(self, pattern: str, text: str) -> bool:
        """Return whether the expression matches somewhere in the text."""
        matcher = self.matcher("pattern", pattern)
        if matcher.is_usable:
            return matcher.matches(spelled(text))
        if pattern not in self.others:
            try:
                self.others[pattern] = PythonExpression(pattern)
            except (re.error, OverflowError):
                raise UncheckableExpression("it has an expression that cannot be read") from None
        return self.others[pattern].found(text)

    def pattern(self, validator: Any, pattern: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and not self.found(pattern, value):
            yield ValidationError("the expression does not match")

    def format(self, validator: Any, name: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        """Check a format that grammars know; others are annotations."""
        if isinstance(value, str) and isinstance(name, str):
            matcher = self.matcher("format", name)
            if matcher.is_usable and not matcher.matches(spelled(value)):
                yield ValidationError("the text has another format")

    def pattern_properties(
        self, validator: Any, schema_by_pattern: Any, value: Any, schema: Any
    ) -> Iterator[ValidationError]:
        for pattern, inner in schema_by_pattern.items() if isinstance(value, dict) else ():
            for name, item in value.items():
                if self.found(pattern, name):
                    yield from validator.descend(item, inner, path=name, schema_path=pattern)

    def additional_properties(self, validator: Any, inner: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        patterns = schema.get("patternProperties", {})
        for name, item in value.items() if isinstance(value, dict) else ():
            if name in schema.get("properties", {}) or any(self.found(pattern, name) for pattern in patterns):
                continue
            if inner is False:
                yield ValidationError("a name that is not foreseen")
            else:
                yield from validator.descend(item, inner, path=name)


def spelled(text: str) -> str:
    """Return a text as grammars spell it in JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def multiple_of(validator: Any, factor: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """Check by decimal digits: as binary numbers, 0.3 is no multiple of 0.1."""
    if validator.is_type(value, "number") and (Fraction(str(value)) / Fraction(str(factor))).denominator != 1:
        yield ValidationError("not a multiple")


def refuse(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is no JSON", "", 0)


def items(validator: Any, inner: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    dialect = Draft201909Validator if isinstance(inner, list) else Draft202012Validator
    yield from dialect.VALIDATORS["items"](validator, inner, value, schema)


def above(validator: Any, low: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    low = schema.get("minimum") if low is True else low
    if validator.is_type(low, "number") and validator.is_type(value, "number") and value <= low:
        yield ValidationError("too small")


def below(validator: Any, high: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    high = schema.get("maximum") if high is True else high
    if validator.is_type(high, "number") and validator.is_type(value, "number") and value >= high:
        yield ValidationError("too large")


# A schema that names no dialect may be in an older notation: grammars take both, where they do not contradict.
OlderNotation = extend(
    Draft202012Validator,
    {
        "dependencies": Draft7Validator.VALIDATORS["dependencies"],
        "items": items,
        "additionalItems": Draft201909Validator.VALIDATORS["additionalItems"],
        "exclusiveMinimum": above,
        "exclusiveMaximum": below,
    },
)
