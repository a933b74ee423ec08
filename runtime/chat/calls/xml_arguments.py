# SPDX-License-Identifier: Apache-2.0
"""Arguments of a tool call as tags, each value as plain text or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pontil.runtime.chat.calls.headed_call import ArgumentReader
from pontil.runtime.chat.calls.json_scanner import SPACE, JsonStep
from pontil.runtime.chat.calls.parameter_kinds import TEXT_ONLY, has_kind, kinds_of, parameter_of
from pontil.runtime.chat.calls.python_scanner import escaped, json_of

MAX_KEY = 256
PLAIN = re.compile(r"[^<\n]+")


@dataclass(frozen=True, slots=True)
class XmlTags:
    """An argument is key_begin KEY key_end value_begin VALUE value_end, and space may stand between; `end` ends the
    arguments. With `lines` a value stands on lines of its own, whose first and last line end are not part of it."""

    key_begin: str
    key_end: str
    value_begin: str
    value_end: str
    end: str
    lines: bool

    @property
    def before(self) -> str:
        """The text between a key and its value, as models write it."""
        line = "\n" if self.value_begin or self.lines else ""
        return f"{self.key_end}{line}{self.value_begin}"

    @property
    def behind(self) -> str:
        return f"\n{self.value_end}\n" if self.lines else f"{self.value_end}\n"

    def written(self, arguments: Mapping[str, Any]) -> str:
        texts = {
            key: argument if isinstance(argument, str) else json.dumps(argument, ensure_ascii=False)
            for key, argument in arguments.items()
        }
        return "".join(f"{self.key_begin}{key}{self.before}{text}{self.behind}" for key, text in texts.items())


class XmlArguments(ArgumentReader):
    """A value is a text where the function's schema says so, and JSON, or else text, where it allows other types."""

    def __init__(self, tags: XmlTags, schema: Mapping[str, Any] | None) -> None:
        super().__init__()
        self.tags, self.schema = tags, schema
        self.step: Callable[[str], JsonStep] = self.tag
        self.word = ""
        self.any = self.fresh = False
        self.kinds = TEXT_ONLY
        self.value: list[str] = []
        """The text of a value that is translated at its end."""

    def take(self, character: str) -> JsonStep:
        return self.step(character)

    def tag(self, character: str) -> JsonStep:
        """Expect the beginning of a key, or the end."""
        if not self.word and character in SPACE:
            return JsonStep.INSIDE
        self.word += character
        if self.word == self.tags.end:
            self.made.append("}" if self.any else "{}")
            return JsonStep.LAST
        if self.word == self.tags.key_begin:
            return self.turn(self.key)
        return self.expect(self.tags.end.startswith(self.word) or self.tags.key_begin.startswith(self.word))

    def turn(self, step: Callable[[str], JsonStep]) -> JsonStep:
        self.word, self.step = "", step
        return JsonStep.INSIDE

    def expect(self, right: bool) -> JsonStep:
        return JsonStep.INSIDE if right else JsonStep.WRONG

    def key(self, character: str) -> JsonStep:
        self.word += character
        if not self.word.endswith(self.tags.key_end):
            return self.expect(len(self.word) <= MAX_KEY)
        key = self.word.removesuffix(self.tags.key_end).strip(SPACE)
        self.kinds = kinds_of(parameter_of(self.schema, key), self.schema)
        quote = '"' if self.kinds == TEXT_ONLY else ""
        self.made.append(f"{', ' if self.any else '{'}{json.dumps(key, ensure_ascii=False)}: {quote}")
        self.any = self.fresh = True
        return self.turn(self.gap if self.tags.value_begin else self.in_value)

    def gap(self, character: str) -> JsonStep:
        """Expect the tag before the value."""
        if not self.word and character in SPACE:
            return JsonStep.INSIDE
        self.word += character
        if self.word == self.tags.value_begin:
            return self.turn(self.in_value)
        return self.expect(self.tags.value_begin.startswith(self.word))

    def in_value(self, character: str) -> JsonStep:
        """Take a character of the value; `word` may be the beginning of its end, which begins with a line end or with
        the only `<` of its tag."""
        if self.fresh:
            self.fresh = False
            if self.tags.lines and character == "\n":
                return JsonStep.INSIDE
        self.word += character
        end = self.word.removeprefix("\n") if self.tags.lines else self.word
        if end == self.tags.value_end:
            return self.end_value()
        if self.tags.value_end.startswith(end):
            return JsonStep.INSIDE
        may_begin = character == "<" or (self.tags.lines and character == "\n")
        self.tell(self.word[:-1] if may_begin else self.word)
        self.word = character if may_begin else ""
        return JsonStep.INSIDE

    def tell(self, text: str) -> None:
        if self.kinds == TEXT_ONLY:
            self.made.append(escaped(text))
        else:
            self.value.append(text)

    def end_value(self) -> JsonStep:
        if self.kinds == TEXT_ONLY:
            self.made.append('"')
        else:
            text, self.value = "".join(self.value), []
            json_text = json_of(text)
            fits = json_text is not None and has_kind(json_text, self.kinds)
            self.made.append(str(json_text) if fits else json.dumps(text, ensure_ascii=False))
        return self.turn(self.tag)

    def plain_end(self, text: str, position: int) -> int:
        if self.step != self.in_value or self.word or self.fresh:
            return position
        plain = PLAIN.match(text, position)
        if plain is None:
            return position
        self.tell(plain[0])
        return plain.end()
