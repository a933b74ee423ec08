# SPDX-License-Identifier: Apache-2.0
"""Structured output: `response_format` as in OpenAI, `structured_outputs` as in vLLM. Either becomes one grammar.
Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pontil.http.fields.structural_tag import element_schema, read_structural_tag, schemas_of, tags_schema
from pontil.http.schema.json_body import kind_of
from pontil.http.schema.parameter import Parameter, Schema, or_null
from pontil.http.schema.parameter_types import NeutralType, ShapedType
from pontil.http.schema.reader import Fields
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar import MAX_GRAMMAR_CHARACTERS
from pontil.runtime.grammar.grammar_text import (
    bounded_object,
    grammar_of_choices,
    grammar_of_regex,
    grammar_of_rules,
    grammar_of_schema,
)
from pontil.runtime.grammar.tag_grammar import grammar_of_format

MAX_DEPTH = 64
MAX_CHOICES = 1024
FORMATS = ("text", "json_object", "json_schema", "structural_tag")
KINDS = ("json", "regex", "choice", "grammar", "json_object")
# Values of unsupported `structured_outputs` options that have no effect. Null never has one.
NEUTRAL_KINDS: dict[str, tuple[Any, ...]] = {
    "disable_fallback": (False, True),
    "disable_any_whitespace": (False,),
    "disable_additional_properties": (False,),
    "whitespace_pattern": (),
    "structural_tag": (),
}
# vLLM's former names, each with its replacement.
OLD_NAMES = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_json_object": "structured_outputs.json_object",
}


@dataclass(frozen=True, slots=True)
class OutputStructure:
    """The grammar that the output has to follow, and the parameter that asked for it. `written` is true if the grammar
    is generated here; a client's own rules are kept as they are.

    `schema` is the JSON schema that was asked for, as JSON, if there is one. `is_exact` is false where an answer may
    follow the grammar and not the schema; `is_new` is true until that is known."""

    grammar: str
    param: str
    written: bool = True
    schema: str | None = None
    strict: bool = False
    is_new: bool = True
    is_exact: bool = True


def structure_of(fields: Fields, values: Mapping[str, Any]) -> OutputStructure | None:
    """Return the output's grammar, not yet compiled; None if the output is unconstrained."""
    names = [name for name in ("response_format", "structured_outputs", *BARE_KINDS) if values[name] is not None]
    if len(names) > 1:
        raise fields.wrong(names[1], f"and {names[0]} both say what the answer has to be: give one")
    structure: OutputStructure | None = values[names[0]] if names else None
    return structure


def read_format(fields: Fields, name: str) -> OutputStructure | None:
    format_fields = fields.required_object(name)
    kind = format_fields.text("type")
    if kind not in FORMATS:
        raise format_fields.unfit("type", kind, f"one of {', '.join(FORMATS)}")
    structure = None
    if kind == "json_object":
        structure = OutputStructure(grammar_of_schema(bounded_object()), name)
    elif kind == "json_schema":
        structure = read_json_schema(format_fields)
    elif kind == "structural_tag":
        tags = read_structural_tag(format_fields)
        structure = written(fields, name, list(schemas_of(tags)), lambda _: grammar_of_format(tags))
    format_fields.finish()
    return structure


def read_json_schema(format_fields: Fields) -> OutputStructure:
    """Read a schema, all of which a grammar has to hold if `strict` is set."""
    schema_fields = format_fields.required_object("json_schema", "is missing: give an object with a name and a schema")
    return read_described(schema_fields)


def read_described(schema_fields: Fields) -> OutputStructure:
    """Read a schema with its name, as both OpenAI's APIs describe one."""
    if not schema_fields.text("name"):
        raise schema_fields.wrong("name", "is missing: give the schema a name")
    schema_fields.text("description")
    strict, schema = schema_fields.boolean("strict", False), schema_fields.take("schema")
    if schema is None:
        raise schema_fields.wrong("schema", "is missing: give a JSON schema")
    schema_fields.finish()
    return schema_structure(schema_fields, "schema", schema, strict)


def schema_structure(fields: Fields, name: str, schema: Any, strict: bool = False) -> OutputStructure:
    """Build the structure of a JSON schema: an object, or true, which everything follows."""
    if schema is False:
        raise fields.wrong(name, "is false, which no answer can follow: give a JSON schema")
    if schema is not True and not isinstance(schema, dict):
        raise fields.typed(name, schema, "a JSON schema, an object or true")
    structure = written(fields, name, {} if schema is True else schema, grammar_of_schema)
    return replace(structure, schema=json.dumps(schema), strict=strict)


def read_kinds(fields: Fields, name: str) -> OutputStructure:
    structure_fields = fields.required_object(name)
    given_kinds = [kind for kind in KINDS if structure_fields.take(kind) is not None]
    structure_fields.neutral(NEUTRAL_KINDS)
    structure_fields.finish()
    if len(given_kinds) != 1:
        raise fields.wrong(name, f"must hold exactly one of {', '.join(KINDS)}")
    return KIND_READERS[given_kinds[0]](structure_fields)


def read_json(structure_fields: Fields, name: str = "json") -> OutputStructure:
    value = structure_fields.take(name)
    if isinstance(value, str):
        check_length(structure_fields, name, value)
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise structure_fields.wrong(name, "is a text that is not JSON: give a JSON schema") from None
    return schema_structure(structure_fields, name, value)


def read_json_object(structure_fields: Fields) -> OutputStructure:
    if not structure_fields.boolean("json_object", True):
        raise structure_fields.wrong("json_object", "must be true, or left out with the rest of structured_outputs")
    return written(structure_fields, "json_object", bounded_object(), grammar_of_schema)


def read_bare(fields: Fields, name: str) -> OutputStructure | None:
    """Read a parameter that other servers have beside the rest; an empty text asks for nothing."""
    return None if fields.take(name) == "" else BARE_KINDS[name](fields, name)


def read_regex(structure_fields: Fields, name: str = "regex") -> OutputStructure:
    return written(structure_fields, name, read_text(structure_fields, name), grammar_of_regex)


def read_grammar(structure_fields: Fields, name: str = "grammar") -> OutputStructure:
    structure = written(structure_fields, name, read_text(structure_fields, name), grammar_of_rules)
    return replace(structure, written=False)


def read_choice(structure_fields: Fields) -> OutputStructure:
    choices = structure_fields.take("choice")
    if not isinstance(choices, list):
        raise structure_fields.typed("choice", choices, "a list of strings")
    if not 0 < len(choices) <= MAX_CHOICES:
        raise structure_fields.wrong("choice", f"must hold 1 to {MAX_CHOICES} strings")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise structure_fields.wrong(
                "choice", f"must hold strings that are not empty, not {choice and kind_of(choice)!r}"
            )
    return written(structure_fields, "choice", list(dict.fromkeys(choices)), grammar_of_choices)


KIND_READERS: Mapping[str, Callable[[Fields], OutputStructure]] = {
    "json": read_json,
    "regex": read_regex,
    "choice": read_choice,
    "grammar": read_grammar,
    "json_object": read_json_object,
}


# SGLang's and llama.cpp's names beside the other parameters.
BARE_KINDS: Mapping[str, Callable[[Fields, str], OutputStructure]] = {
    "regex": read_regex,
    "ebnf": read_grammar,
    "grammar": read_grammar,
    "json_schema": read_json,
}


def read_text(structure_fields: Fields, name: str) -> str:
    text = structure_fields.text(name)
    if not text:
        raise structure_fields.wrong(name, "is empty: give a text, or leave it out")
    check_length(structure_fields, name, text)
    return text


def check_length(structure_fields: Fields, name: str, text: str) -> None:
    """Check the length before the text is processed; its grammar would not be shorter."""
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise structure_fields.wrong(name, f"is too large: at most {MAX_GRAMMAR_CHARACTERS} characters are possible")


def written(fields: Fields, name: str, value: Any, write: Callable[[Any], str]) -> OutputStructure:
    """Build the grammar of a value, after a check of its nesting depth."""
    if is_deep(value):
        raise fields.wrong(name, f"is nested more than {MAX_DEPTH} deep")
    return grammar_for(f"{fields.path}{name}", lambda: write(value))


def grammar_for(param: str, write: Callable[[], str]) -> OutputStructure:
    """Build this parameter's grammar. Raises RequestError, naming the parameter."""
    try:
        grammar = write()
    except RequestError as error:
        raise RequestError(f"{param} cannot be used: {error}", param=param) from None
    if len(grammar) > MAX_GRAMMAR_CHARACTERS:
        says = f"{param} is too large: at most {MAX_GRAMMAR_CHARACTERS} characters are possible"
        raise RequestError(says, param=param)
    return OutputStructure(grammar, param)


def is_deep(value: Any) -> bool:
    """Return whether containers are nested more than MAX_DEPTH deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for node in level
            if isinstance(node, dict | list)
            for item in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


def format_schema() -> Schema:
    text, flag = or_null({"type": "string"}), or_null({"type": "boolean"})
    json_schema = closed(["name", "schema"], name=TEXT, schema=SCHEMA, description=text, strict=flag)
    return {
        "title": "what the answer has to be, as `docs/guide/structured-output.md` shows",
        "oneOf": [
            closed(["type"], type={"enum": ["text", "json_object"]}),
            closed(["type", "json_schema"], type={"const": "json_schema"}, json_schema=json_schema),
            closed(
                ["type", "structures", "triggers"],
                type={"const": "structural_tag"},
                format={"type": "null"},
                **tags_schema(SCHEMA),
            ),
            closed(
                ["type", "format"],
                type={"const": "structural_tag"},
                format=element_schema(),
                structures={"enum": [[], None]},
                triggers={"enum": [[], None]},
            ),
        ],
    }


def kinds_schema() -> Schema:
    types: dict[str, Schema] = {
        "json": {"anyOf": [SCHEMA, TEXT]},
        "regex": TEXT,
        "grammar": TEXT,
        "json_object": {"const": True},
        "choice": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": MAX_CHOICES},
    }
    neutral_fields: dict[str, Schema] = {
        name: {"enum": [*neutral_values, None]} for name, neutral_values in NEUTRAL_KINDS.items()
    }
    neutral_fields |= {name: {"type": "null"} for name in types}
    return {
        "title": f"an object with one of `{'`, `'.join(KINDS)}`, as `docs/guide/structured-output.md` shows",
        "oneOf": [closed([name], **neutral_fields | {name: kind}) for name, kind in types.items()],
    }


def closed(required: list[str], /, **properties: Schema) -> Schema:
    """Return the schema of an object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TEXT: Schema = {"type": "string", "minLength": 1}
SCHEMA: Schema = {"anyOf": [{"type": "object"}, {"const": True}]}
BARE_TEXT: Schema = {"type": "string"}
BARE_JSON: Schema = {"title": "a JSON schema, or its text", "anyOf": [SCHEMA, BARE_TEXT]}
STRUCTURE = (
    Parameter(
        "response_format", ShapedType(read_format, format_schema()), "free text, JSON, or JSON that follows a schema"
    ),
    Parameter("structured_outputs", ShapedType(read_kinds, kinds_schema()), "what the answer follows to the letter"),
    Parameter("regex", ShapedType(read_bare, BARE_TEXT), "the same as structured_outputs.regex"),
    Parameter("ebnf", ShapedType(read_bare, BARE_TEXT), "the same as structured_outputs.grammar"),
    Parameter("grammar", ShapedType(read_bare, BARE_TEXT), "the same as structured_outputs.grammar"),
    Parameter("json_schema", ShapedType(read_bare, BARE_JSON), "the same as structured_outputs.json"),
    *(
        Parameter(name, NeutralType(others=f"is an older name: use {instead}"), f"the older name of {instead}")
        for name, instead in OLD_NAMES.items()
    ),
    Parameter("guided_decoding_backend", NeutralType(), "which library is to keep the answer to its grammar"),
    Parameter("guided_whitespace_pattern", NeutralType(), "which spaces JSON may have"),
    Parameter("structural_tag", NeutralType(), "structure between tags only"),
)
