# SPDX-License-Identifier: Apache-2.0
"""The declaration of a request's parameter: parsers, /openapi.json and the table in docs/guide/api.md all follow it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from pontil.http.schema.reader import Fields, Spelling

# JSON Schema 2020-12, as used by OpenAPI.
Schema = dict[str, Any]


class ParameterType(Protocol):
    """The set of values that a parameter may have."""

    def read(self, fields: Fields, name: str) -> Any:
        """Return the value, which is not null. Raises RequestError, naming the parameter."""

    def schema(self, vocab_size: int) -> Schema:
        """JSON Schema of the values that `read` accepts; it may allow more where a schema cannot express the rule."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A declared parameter; `says` describes it in a few words. Null counts as absent: an error where it is `required`,
    else `default`."""

    name: str
    kind: ParameterType
    says: str
    default: Any = None
    required: bool = False

    @property
    def optional(self) -> "Parameter":
        return replace(self, required=False)

    def read(self, fields: Fields) -> Any:
        if fields.take(self.name) is not None:
            return self.kind.read(fields, self.name)
        if self.required:
            raise fields.wrong(self.name, f"is missing: give {self.says}", "missing_required_parameter")
        return self.default

    def schema(self, vocab_size: int) -> Schema:
        annotations: Schema = {"description": self.says}
        if self.required:
            return self.kind.schema(vocab_size) | annotations
        if self.default not in (None, ()):
            annotations["default"] = self.default
        return or_null(self.kind.schema(vocab_size)) | annotations


class ParameterTable:
    """Parameters in the order in which they are read, prepared once for all requests: most of the many are absent from
    most requests, and cost nothing there."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = {parameter.name: parameter for parameter in parameters}
        self.place = {name: place for place, name in enumerate(self.parameters)}
        self.defaults = {name: parameter.default for name, parameter in self.parameters.items()}
        self.required = frozenset(name for name, parameter in self.parameters.items() if parameter.required)

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(self.parameters)

    def read(self, fields: Fields) -> dict[str, Any]:
        """Return the value of each parameter by its name. Undeclared fields have no effect; those that look like a
        misspelt parameter are refused, and a strict server refuses all (F3)."""
        parameters, values = self.parameters, self.defaults.copy()
        given_names = {name for name, value in fields.data.items() if value is not None and name in parameters}
        for name in sorted(given_names | self.required, key=self.place.__getitem__):
            values[name] = parameters[name].read(fields)
        fields.read.update(parameters)
        fields.ignore_unknown(lambda: self.spelling)
        return values


def read_all(fields: Fields, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Read parameters of which no table is kept."""
    return ParameterTable(parameters).read(fields)


def object_schema(parameters: Sequence[Parameter], vocab_size: int) -> Schema:
    """Return the schema of an object with these parameters; others have no effect."""
    required_names = [parameter.name for parameter in parameters if parameter.required]
    return {
        "type": "object",
        "properties": {parameter.name: parameter.schema(vocab_size) for parameter in parameters},
    } | ({"required": required_names} if required_names else {})


def opened(required: list[str], /, **properties: Schema) -> Schema:
    """Return the schema of an object with these properties; others have no effect."""
    return {"type": "object", "properties": properties, "required": required}


def or_null(schema: Schema) -> Schema:
    if "enum" in schema:
        return schema | {"enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return schema | {"type": [schema["type"], "null"]}
    title = {"title": schema["title"]} if "title" in schema else {}
    return title | {"anyOf": [{name: value for name, value in schema.items() if name != "title"}, {"type": "null"}]}
