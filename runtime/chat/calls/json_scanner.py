# SPDX-License-Identifier: Apache-2.0
"""Follows one JSON value character by character (RFC 8259), to detect its end before any further text has arrived."""

from __future__ import annotations

import re
from enum import Enum, auto

SPACE = " \t\r\n"
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
NUMBER_CHARACTERS = frozenset("0123456789+-.eE")
LITERALS = {"t": "true", "f": "false", "n": "null"}
HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
ESCAPES = frozenset('"\\/bfnrtu')
CLOSERS = {"{": "}", "[": "]"}
# Depth of nested containers; JSON parsers give up at some depth, and no arguments of a call need this one.
MAX_DEPTH = 256
# Characters of a number; readers of JSON give up at some thousands of digits.
MAX_NUMBER = 1000


class JsonStep(Enum):
    """The meaning of a character: part of the value, its last one, the first one behind it, or wrong."""

    INSIDE = auto()
    LAST = auto()
    BEHIND = auto()
    WRONG = auto()


class JsonState(Enum):
    """The kinds of characters that may come next."""

    VALUE = auto()
    FIRST_ITEM = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    COMMA = auto()
    STRING = auto()
    ESCAPE = auto()
    UNICODE = auto()
    LITERAL = auto()
    NUMBER = auto()


class JsonScanner:
    """Constant work for each character. Only a number ends at the character behind it. No character may be taken after
    a step that is not INSIDE. White space before the value is part of it."""

    def __init__(self) -> None:
        self.place = JsonState.VALUE
        self.open: list[str] = []
        self.word = ""
        self.is_key = False

    @property
    def fresh(self) -> bool:
        """True if the value has not begun."""
        return self.place is JsonState.VALUE and not self.open

    def take(self, character: str) -> JsonStep:
        if self.place is JsonState.STRING:
            return self.in_string(character)
        if self.place is JsonState.NUMBER:
            return self.in_number(character)
        if self.place in (JsonState.ESCAPE, JsonState.UNICODE, JsonState.LITERAL):
            return self.in_word(character)
        if character in SPACE:
            return JsonStep.INSIDE
        if self.place is JsonState.COLON:
            return self.go(JsonState.VALUE, character == ":")
        if self.place is JsonState.COMMA:
            return self.behind_value(character)
        if self.place in (JsonState.FIRST_ITEM, JsonState.FIRST_KEY) and character == CLOSERS[self.open[-1]]:
            return self.close()
        if self.place in (JsonState.FIRST_KEY, JsonState.KEY):
            self.is_key = True
            return self.go(JsonState.STRING, character == '"')
        return self.begin(character)

    def begin(self, character: str) -> JsonStep:
        if character == '"':
            return self.go(JsonState.STRING)
        if character in CLOSERS:
            self.open.append(character)
            return self.go(
                JsonState.FIRST_KEY if character == "{" else JsonState.FIRST_ITEM, len(self.open) <= MAX_DEPTH
            )
        if character in LITERALS:
            self.word = LITERALS[character][1:]
            return self.go(JsonState.LITERAL)
        self.word = character
        return self.go(JsonState.NUMBER, character in "-0123456789")

    def go(self, place: JsonState, right: bool = True) -> JsonStep:
        self.place = place
        return JsonStep.INSIDE if right else JsonStep.WRONG

    def in_string(self, character: str) -> JsonStep:
        if character == "\\":
            return self.go(JsonState.ESCAPE)
        if character != '"':
            return JsonStep.INSIDE if character >= " " else JsonStep.WRONG
        if self.is_key:
            self.is_key = False
            return self.go(JsonState.COLON)
        return self.end_value()

    def in_word(self, character: str) -> JsonStep:
        """Take the rest of an escape or of a literal."""
        if self.place is JsonState.ESCAPE:
            self.word = "0000"
            return self.go(JsonState.UNICODE if character == "u" else JsonState.STRING, character in ESCAPES)
        expected_character, self.word = self.word[0], self.word[1:]
        if self.place is JsonState.UNICODE:
            return self.go(JsonState.UNICODE if self.word else JsonState.STRING, character in HEXADECIMAL)
        if character != expected_character:
            return JsonStep.WRONG
        return JsonStep.INSIDE if self.word else self.end_value()

    def in_number(self, character: str) -> JsonStep:
        if character in NUMBER_CHARACTERS:
            self.word += character
            return JsonStep.INSIDE if len(self.word) <= MAX_NUMBER else JsonStep.WRONG
        if NUMBER.fullmatch(self.word) is None:
            return JsonStep.WRONG
        return self.end_word(character)

    def end_word(self, character: str) -> JsonStep:
        """Take the character that shows that a value has ended."""
        if not self.open:
            return JsonStep.BEHIND
        self.place = JsonState.COMMA
        return self.take(character)

    def behind_value(self, character: str) -> JsonStep:
        if character == CLOSERS[self.open[-1]]:
            return self.close()
        return self.go(JsonState.KEY if self.open[-1] == "{" else JsonState.VALUE, character == ",")

    def close(self) -> JsonStep:
        self.open.pop()
        return self.end_value()

    def end_value(self) -> JsonStep:
        self.place = JsonState.COMMA
        return JsonStep.INSIDE if self.open else JsonStep.LAST
