# SPDX-License-Identifier: Apache-2.0
"""`response_format` of the type "structural_tag", as vLLM and SGLang have it: structure between tags in free text, in
either of its notations. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pontil.http.schema.parameter import Schema
from pontil.http.schema.reader import Fields
from pontil.runtime.grammar.tag_grammar import (
    FixedText,
    FreeText,
    InTurn,
    JsonValue,
    OneOfFormats,
    TagFormat,
    Tagged,
    TriggeredTags,
)

# Structures, and elements of a format in all.
MAX_STRUCTURES = 128
MAX_TRIGGERS = 16
MAX_TAG_CHARACTERS = 1024
MAX_FORMAT_DEPTH = 16
# Formats of vLLM's that are refused by name.
UNSUPPORTED_FORMATS = ("regex", "grammar", "tags_with_separator", "qwen_xml_parameter")


def read_structural_tag(tag_fields: Fields) -> TagFormat:
    """Read the structures with their triggers, or the format that says all."""
    format_fields = tag_fields.object("format")
    if format_fields is None:
        return read_structures(tag_fields)
    tag_fields.neutral({"structures": ([],), "triggers": ([],)})
    return FormatReader().read(format_fields)


def read_structures(tag_fields: Fields) -> TriggeredTags:
    triggers = read_triggers(tag_fields)
    structures = tag_fields.objects("structures", MAX_STRUCTURES)
    if not structures:
        raise tag_fields.wrong("structures", "is empty: give at least one, with begin, schema and end")
    return triggered(tag_fields, triggers, tuple(read_structure(fields, triggers) for fields in structures))


def triggered(
    tag_fields: Fields, triggers: tuple[str, ...], tags: tuple[Tagged, ...], once: bool = False
) -> TriggeredTags:
    for trigger in triggers:
        if not any(tag.begin.startswith(trigger) for tag in tags):
            raise tag_fields.wrong("triggers", f"holds {trigger!r:.60}, with which no tag begins: leave it out")
    return TriggeredTags(triggers, tags, once)


def read_triggers(tag_fields: Fields) -> tuple[str, ...]:
    triggers = tag_fields.take("triggers")
    if not isinstance(triggers, list):
        raise tag_fields.typed("triggers", triggers, "a list of strings")
    if not 0 < len(triggers) <= MAX_TRIGGERS:
        raise tag_fields.wrong("triggers", f"must hold 1 to {MAX_TRIGGERS} strings")
    for trigger in triggers:
        if not isinstance(trigger, str) or not 0 < len(trigger) <= MAX_TAG_CHARACTERS:
            raise tag_fields.wrong("triggers", f"must hold strings of 1 to {MAX_TAG_CHARACTERS} characters")
    return tuple(dict.fromkeys(triggers))


def read_structure(fields: Fields, triggers: tuple[str, ...]) -> Tagged:
    begin, content, end = read_begin(fields, triggers), read_schema(fields, "schema"), read_tag_text(fields, "end")
    fields.finish()
    return Tagged(begin, content, end)


def read_begin(fields: Fields, triggers: tuple[str, ...]) -> str:
    begin = read_tag_text(fields, "begin")
    if triggers and not begin.startswith(triggers):
        raise fields.wrong("begin", "does not begin with one of triggers: add a trigger for it")
    return begin


def read_tag_text(fields: Fields, name: str) -> str:
    text = fields.required_text(name)
    if len(text) > MAX_TAG_CHARACTERS:
        raise fields.wrong(name, f"may have at most {MAX_TAG_CHARACTERS} characters")
    return text


def read_schema(fields: Fields, name: str) -> JsonValue:
    schema = fields.take(name)
    if schema is not True and not isinstance(schema, dict):
        raise fields.typed(name, schema, "a JSON schema, an object or true")
    return JsonValue({} if schema is True else schema)


class FormatReader:
    """Reads one format. Its elements are counted before they are read."""

    def __init__(self) -> None:
        self.count = self.depth = 0

    def read(self, fields: Fields) -> TagFormat:
        kind = self.counted(fields)
        if kind in UNSUPPORTED_FORMATS:
            raise fields.wrong("type", f"{kind} is not supported yet", "unsupported_parameter")
        if kind not in FORMAT_READERS:
            raise fields.unfit("type", kind, f"one of {', '.join(FORMAT_READERS)}")
        self.depth += 1
        tag_format = FORMAT_READERS[kind](self, fields)
        self.depth -= 1
        fields.finish()
        return tag_format

    def counted(self, fields: Fields) -> str:
        self.count += 1
        if self.count > MAX_STRUCTURES or self.depth > MAX_FORMAT_DEPTH:
            says = f"is one element too many: {MAX_STRUCTURES} are possible, {MAX_FORMAT_DEPTH} within each other"
            raise fields.wrong("type", says)
        return fields.required_text("type")

    def elements(self, fields: Fields) -> tuple[TagFormat, ...]:
        element_list = fields.objects("elements", MAX_STRUCTURES)
        if not element_list:
            raise fields.wrong("elements", "is empty: give at least one element")
        return tuple(self.read(element) for element in element_list)

    def tag(self, fields: Fields, triggers: tuple[str, ...] = ()) -> Tagged:
        begin, end = read_begin(fields, triggers), read_tag_text(fields, "end")
        content = fields.required_object("content", "is missing: give a format")
        return Tagged(begin, self.read(content), end)

    def triggered_tag(self, fields: Fields, triggers: tuple[str, ...]) -> Tagged:
        """Read a tag in a list of nothing else, where it needs no type."""
        if fields.text("type") not in (None, "tag"):
            raise fields.unfit("type", fields.data["type"], "tag")
        tag_format = self.tag(fields, triggers)
        fields.finish()
        return tag_format

    def triggered_tags(self, fields: Fields) -> TriggeredTags:
        triggers, once = read_triggers(fields), fields.boolean("stop_after_first", False)
        fields.neutral({"at_least_one": (False,), "excludes": ([],)})
        tag_list = fields.objects("tags", MAX_STRUCTURES)
        return triggered(
            fields, triggers, tuple(self.triggered_tag(tag_fields, triggers) for tag_fields in tag_list), once
        )


FORMAT_READERS: Mapping[str, Callable[[FormatReader, Fields], TagFormat]] = {
    "const_string": lambda _, fields: FixedText(read_value(fields)),
    "json_schema": lambda _, fields: read_schema(fields, "json_schema"),
    "any_text": lambda _, fields: read_any_text(fields),
    "sequence": lambda reader, fields: InTurn(reader.elements(fields)),
    "or": lambda reader, fields: OneOfFormats(reader.elements(fields)),
    "tag": lambda reader, fields: reader.tag(fields),
    "triggered_tags": lambda reader, fields: reader.triggered_tags(fields),
}


def read_value(fields: Fields) -> str:
    value = read_tag_text(fields, "value")
    if not value:
        raise fields.wrong("value", "is empty: give a text, or leave the element out")
    return value


def read_any_text(fields: Fields) -> FreeText:
    fields.neutral({"excludes": ([],)})
    return FreeText()


def schemas_of(tag_format: TagFormat) -> Iterator[Mapping[str, Any]]:
    match tag_format:
        case JsonValue(schema):
            yield schema
        case InTurn(parts) | OneOfFormats(parts):
            for part in parts:
                yield from schemas_of(part)
        case Tagged(_, content, _):
            yield from schemas_of(content)
        case TriggeredTags(_, tags, _):
            for tag in tags:
                yield from schemas_of(tag)
        case _:
            pass


def tags_schema(schema: Schema) -> dict[str, Any]:
    """Return the schemas of structures and triggers, where `schema` is that of a JSON schema."""
    text = {"type": "string", "maxLength": MAX_TAG_CHARACTERS}
    begin = text | {"minLength": 1}
    structure = {
        "type": "object",
        "properties": {"begin": begin, "schema": schema, "end": text},
        "required": ["begin", "schema", "end"],
        "additionalProperties": False,
    }
    return {
        "structures": {"type": "array", "items": structure, "minItems": 1, "maxItems": MAX_STRUCTURES},
        "triggers": {"type": "array", "items": begin, "minItems": 1, "maxItems": MAX_TRIGGERS},
    }


def element_schema() -> Schema:
    """Return the schema of a format. What its elements hold is described in words."""
    return {
        "title": "an element, as `docs/guide/structured-output.md` shows",
        "type": "object",
        "properties": {"type": {"enum": [*FORMAT_READERS]}},
        "required": ["type"],
    }
