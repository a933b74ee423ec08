# SPDX-License-Identifier: Apache-2.0
"""The ways in which a call's name and arguments are written."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.runtime.chat.calls.argument_grammar import python_grammar, xml_grammar
from pontil.runtime.chat.calls.body import CallBody
from pontil.runtime.chat.calls.headed_call import Functions, HeadedCall, JsonArguments
from pontil.runtime.chat.calls.object_reader import CallObject
from pontil.runtime.chat.calls.python_arguments import PythonArguments
from pontil.runtime.chat.calls.xml_arguments import XmlArguments, XmlTags
from pontil.runtime.grammar.grammar_text import ANY_OBJECT, json_part

NAME = r"(?P<name>[^\s{}()<>=]+?)"


class CallSyntax(ABC):
    """Reads and writes one call, without the markers around it."""

    @abstractmethod
    def body(self, functions: Functions, first: str = "{") -> CallBody:
        """A reader of one call of these functions, whose first character is given."""

    @abstractmethod
    def head(self, name: str) -> str:
        """The text before the arguments."""

    @property
    @abstractmethod
    def tail(self) -> str:
        """The text behind the arguments."""

    @abstractmethod
    def arguments(self, values: Mapping[str, Any]) -> str:
        """The arguments as a model of this format writes them."""

    @abstractmethod
    def grammar(self, schema: Mapping[str, Any] | None, exact: bool, number: int) -> tuple[str, str]:
        """An expression for arguments that follow a schema, or for any if there is none, and the rules that it names.
        `number` is that of the function. Raises RequestError for what the format cannot keep, if it has to be
        `exact`."""


class JsonSyntax(CallSyntax):
    """Arguments in JSON."""

    def arguments(self, values: Mapping[str, Any]) -> str:
        return json.dumps(values, ensure_ascii=False)

    def grammar(self, schema: Mapping[str, Any] | None, exact: bool, number: int) -> tuple[str, str]:
        return json_part(ANY_OBJECT if schema is None else schema), ""


@dataclass(frozen=True, slots=True)
class ObjectSyntax(JsonSyntax):
    """`{"name": …, "<key>": {…}}`. All usual keys of the arguments are read."""

    key: str

    def body(self, functions: Functions, first: str = "{") -> CallBody:
        return CallObject(functions)

    def head(self, name: str) -> str:
        return f'{{"name": {json.dumps(name)}, "{self.key}": '

    @property
    def tail(self) -> str:
        return "}"


@dataclass(frozen=True, slots=True)
class NamedSyntax(JsonSyntax):
    """`before NAME behind {…} after`. `pattern` is what is read up to the brace."""

    before: str
    behind: str
    after: str
    pattern: re.Pattern[str]

    def body(self, functions: Functions, first: str = "{") -> CallBody:
        return HeadedCall(functions, self.pattern, True, lambda schema: JsonArguments())

    def head(self, name: str) -> str:
        return self.before + name + self.behind

    @property
    def tail(self) -> str:
        return self.after


@dataclass(frozen=True, slots=True)
class EitherSyntax(JsonSyntax):
    """Either of two, as a call's first character tells: a brace begins an object."""

    objects: ObjectSyntax
    named: NamedSyntax
    writes_objects: bool

    def body(self, functions: Functions, first: str = "{") -> CallBody:
        return (self.objects if first == "{" else self.named).body(functions)

    @property
    def written(self) -> CallSyntax:
        return self.objects if self.writes_objects else self.named

    def head(self, name: str) -> str:
        return self.written.head(name)

    @property
    def tail(self) -> str:
        return self.written.tail


@dataclass(frozen=True, slots=True)
class XmlSyntax(CallSyntax):
    """`before NAME behind`, the arguments as tags, `after`. `pattern` is what is read before the arguments; if `keep`
    its last character belongs to them."""

    tags: XmlTags
    before: str
    behind: str
    after: str
    pattern: re.Pattern[str]
    keep: bool

    def body(self, functions: Functions, first: str = "{") -> CallBody:
        return HeadedCall(functions, self.pattern, self.keep, lambda schema: XmlArguments(self.tags, schema))

    def head(self, name: str) -> str:
        return self.before + name + self.behind

    @property
    def tail(self) -> str:
        return self.tags.end + self.after

    def arguments(self, values: Mapping[str, Any]) -> str:
        return self.tags.written(values)

    def grammar(self, schema: Mapping[str, Any] | None, exact: bool, number: int) -> tuple[str, str]:
        return xml_grammar(self.tags, schema or {}, schema is None, exact)


@dataclass(frozen=True, slots=True)
class PythonSyntax(CallSyntax):
    """`NAME(key=value, …)`."""

    def body(self, functions: Functions, first: str = "{") -> CallBody:
        return HeadedCall(functions, re.compile(rf"\s*{NAME}\s*\("), False, lambda schema: PythonArguments())

    def head(self, name: str) -> str:
        return f"{name}("

    @property
    def tail(self) -> str:
        return ")"

    def arguments(self, values: Mapping[str, Any]) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in values.items())

    def grammar(self, schema: Mapping[str, Any] | None, exact: bool, number: int) -> tuple[str, str]:
        return python_grammar(schema or {}, schema is None, exact, number)
