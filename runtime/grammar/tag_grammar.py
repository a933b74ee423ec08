# SPDX-License-Identifier: Apache-2.0
"""The grammars of structural tags: texts, JSON values and free text, one behind the other or within each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar_text import START, json_part, quoted


@dataclass(frozen=True, slots=True)
class FixedText:
    """This text."""

    text: str


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A JSON value that follows `schema`."""

    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FreeText:
    """Any text, which ends where the text behind it appears for the first time."""


@dataclass(frozen=True, slots=True)
class InTurn:
    """Parts one behind the other; at least one."""

    parts: tuple[TagFormat, ...]


@dataclass(frozen=True, slots=True)
class OneOfFormats:
    """One of these; at least one."""

    parts: tuple[TagFormat, ...]


@dataclass(frozen=True, slots=True)
class Tagged:
    """A content between two texts."""

    begin: str
    content: TagFormat
    end: str = ""


@dataclass(frozen=True, slots=True)
class TriggeredTags:
    """Any text, and tags in it, each of which begins with one of the triggers. No trigger stands for itself. Where one
    of them begins with another, the shorter one counts. Where `stops_after_first`, the first tag ends the text."""

    triggers: tuple[str, ...]
    tags: tuple[Tagged, ...]
    stops_after_first: bool = False


TagFormat = FixedText | JsonValue | FreeText | InTurn | OneOfFormats | Tagged | TriggeredTags


def grammar_of_format(tag_format: TagFormat) -> str:
    """Raises RequestError for a format with free text whose end nothing tells."""
    writer = FormatWriter()
    start = writer.expression(tag_format, None)
    # Only a JSON value and nothing else may begin as one, by which such grammars are known.
    whole = start if isinstance(tag_format, JsonValue) else f"({start})"
    return f"{START}{whole}\n{''.join(writer.rules)}{OUTSIDE}"


OUTSIDE = "OUTSIDE: /(?s:.*)/\n"
UNBOUNDED = "an element {} has no end: it may stand last, or be the content of a tag with an end"


class FormatWriter:
    """Writes expressions of formats, and the rules that they name."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def expression(self, tag_format: TagFormat, behind: str | None) -> str:
        """Return the expression of a format together with the text behind it; None: the end of the answer. An empty
        text stands where another element follows."""
        match tag_format:
            case FixedText(text):
                return joined_parts(quoted(text), behind)
            case JsonValue(schema):
                return joined_parts(json_part(schema), behind)
            case FreeText():
                return self.free_text(behind)
            case InTurn(parts):
                *first, last = parts
                return " ".join([*(self.expression(part, "") for part in first), self.expression(last, behind)])
            case OneOfFormats(parts):
                return f"({' | '.join(self.expression(part, behind) for part in parts)})"
            case Tagged():
                return self.tag(tag_format, behind)
            case TriggeredTags():
                return self.triggered(tag_format, behind)

    def free_text(self, behind: str | None) -> str:
        if behind is None:
            return "OUTSIDE"
        if not behind:
            raise RequestError(UNBOUNDED.format("any_text"))
        return self.rule("text", f"OUTSIDE {quoted(behind)}", "[lazy]")

    def tag(self, tag: Tagged, behind: str | None) -> str:
        inner = self.expression(tag.content, tag.end or behind)
        return joined_parts(f"{quoted(tag.begin)} {inner}" if tag.begin else inner, behind if tag.end else None)

    def triggered(self, tag_format: TriggeredTags, behind: str | None) -> str:
        if behind is not None:
            raise RequestError("an element triggered_tags may stand only at the end of the format")
        parts = [self.triggered_by(trigger, tag_format.tags) for trigger in tag_format.triggers]
        tail = self.rule("rest", "OUTSIDE")
        return f"({' | '.join([*parts, tail])})" if tag_format.stops_after_first else f"({' | '.join(parts)})* {tail}"

    def triggered_by(self, trigger: str, tags: Sequence[Tagged]) -> str:
        """Return any text up to a trigger, and one of the tags that begin with it."""
        tag_rules = [
            self.tag(Tagged(tag.begin.removeprefix(trigger), tag.content, tag.end), "")
            for tag in tags
            if tag.begin.startswith(trigger)
        ]
        trigger_rule = self.rule("begun", f"OUTSIDE {quoted(trigger)}", "[lazy]")
        return f"{trigger_rule} {self.rule('tag', ' | '.join(f'({tag_rule})' for tag_rule in tag_rules))}"

    def rule(self, kind: str, body: str, options: str = "") -> str:
        """Add a rule, and return its name."""
        name = f"{kind}_{len(self.rules)}"
        self.rules.append(f"{name}{options}: {body}\n")
        return name


def joined_parts(expression: str, behind: str | None) -> str:
    return f"{expression} {quoted(behind)}" if behind else expression
