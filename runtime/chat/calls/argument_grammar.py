# SPDX-License-Identifier: Apache-2.0
"""Grammars of a call's arguments in notations other than JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pontil.runtime.chat.calls.parameter_kinds import UNKNOWN, kinds_of
from pontil.runtime.chat.calls.xml_arguments import XmlTags
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar_text import json_part, quoted

Schema = Mapping[str, Any]
# Keywords that a text without quotes would have to obey.
TEXT_KEYWORDS = ("pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType", "not", "allOf")
# Keywords of all arguments together that are kept, or say nothing.
KEPT = {
    "type", "properties", "required", "additionalProperties", "description", "title", "$schema", "$id", "$defs",
    "definitions", "examples", "default", "$comment", "strict",
}  # fmt: skip


def parameters_of(schema: Schema, exact: bool) -> Iterator[tuple[str, Any, bool]]:
    """Yield name, schema and necessity of each parameter. Raises RequestError if the arguments have to be `exact` and
    the schema asks for more than these."""
    odd = sorted(set(schema) - KEPT)
    if exact and odd:
        raise RequestError(
            f"{odd[0]} cannot be kept beside strict in this model's format of calls, where each argument stands by "
            "itself: leave one of them out"
        )
    properties, required_names = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, Mapping) or not isinstance(required_names, list):
        raise RequestError("properties must be an object, and required a list of their names")
    missing = next((name for name in required_names if name not in properties), None)
    if missing is not None:
        raise RequestError(f"{missing!r} is required, but is none of the properties")
    for name, property_schema in properties.items():
        yield name, property_schema, name in required_names


def whole(schema: Any, root: Schema) -> Schema:
    """The schema of one parameter, with the definitions that it may refer to."""
    if not isinstance(schema, Mapping):
        return {} if schema is True else {"not": {}}
    return {**{name: root[name] for name in ("$defs", "definitions") if name in root}, **schema}


def xml_grammar(tags: XmlTags, schema: Schema, free: bool, exact: bool) -> tuple[str, str]:
    """The expression for arguments as tags, and the rules that it names; of any arguments if `free`."""
    rules = f"value_text[lazy]: /(?s:.*)/ {quoted(tags.behind)}\n"
    if free:
        return f"({quoted(tags.key_begin)} /[^<>\\n]{{1,64}}/ {quoted(tags.before)} value_text)*", rules
    argument_parts = []
    for name, property_schema, is_required in parameters_of(schema, exact):
        if any(part in name for part in ("\n", "<", ">")):
            raise RequestError(f"the parameter {name!r} cannot be written in this model's format of calls")
        value = xml_value(tags, name, property_schema, schema, exact)
        argument_parts.append(f"({quoted(tags.key_begin + name + tags.before)} {value}){'' if is_required else '?'}")
    return " ".join(argument_parts), rules


def xml_value(tags: XmlTags, name: str, schema: Any, root: Schema, exact: bool) -> str:
    """A value with its end. A text is not quoted, so that its end is the first of its tags."""
    kinds = kinds_of(schema, root)
    if "string" not in kinds and kinds != UNKNOWN:
        return f"{json_part(whole(schema, root))} {quoted(tags.behind)}"
    if isinstance(schema, Mapping):
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
            if any(tags.value_end in choice for choice in choices):
                raise RequestError(f"a text of {name!r} cannot be written in this model's format of calls")
            return f"({' | '.join(quoted(choice + tags.behind) for choice in choices)})"
        odd = next((word for word in TEXT_KEYWORDS if word in schema), None)
        if exact and odd is not None:
            raise RequestError(
                f"{odd} of the parameter {name!r} cannot be kept beside strict in this model's format of calls, where "
                "texts have no quotes: leave one of them out"
            )
    return "value_text"


def python_grammar(schema: Schema, free: bool, exact: bool, number: int) -> tuple[str, str]:
    """The same for arguments in Python's notation. Values are JSON, which is read there too."""
    if free:
        rules = f'any_argument: /[A-Za-z_][0-9A-Za-z_]{{0,63}}/ "=" {json_part({})}\n'
        return '(any_argument (", " any_argument)*)?', rules
    first: list[str] = []
    optional_names: list[str] = []
    rules = ""
    for index, (name, property_schema, is_required) in enumerate(parameters_of(schema, exact)):
        if not name.isidentifier():
            raise RequestError(f"the parameter {name!r} cannot be written in this model's format of calls")
        rule_name = f"argument_{number}_{index}"
        rules += f"{rule_name}: {quoted(name + '=')} {json_part(whole(property_schema, schema))}\n"
        (first if is_required else optional_names).append(rule_name)
    if first:
        return ' ", " '.join(first) + "".join(f' (", " {rule_name})?' for rule_name in optional_names), rules
    tails = [
        rule_name + "".join(f' (", " {later_name})?' for later_name in optional_names[index + 1 :])
        for index, rule_name in enumerate(optional_names)
    ]
    return f"({' | '.join(tails)})?" if tails else "", rules
