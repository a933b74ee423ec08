# SPDX-License-Identifier: Apache-2.0
"""Follows one JSON value character by character (RFC 8259), to know where it ends before anything else has come."""

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
# Containers in each other; readers of JSON give up at some depth, and no arguments of a call need this one.
MAX_DEPTH = 256


class Step(Enum):
    """What a character is: part of the value, its last one, the first one behind it, or wrong."""

    INSIDE = auto()
    LAST = auto()
    BEHIND = auto()
    WRONG = auto()


class Place(Enum):
    """What may come next."""

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
    """Constant work for each character. Only a number ends by what comes behind it. Nothing may be taken after a step
    that is not INSIDE. White space before the value is part of it."""

    def __init__(self) -> None:
        self.place = Place.VALUE
        self.open: list[str] = []
        self.word = ""
        self.is_key = False

    @property
    def fresh(self) -> bool:
        """Whether the value has not begun."""
        return self.place is Place.VALUE and not self.open

    def take(self, character: str) -> Step:
        if self.place is Place.STRING:
            return self.in_string(character)
        if self.place is Place.NUMBER:
            return self.in_number(character)
        if self.place in (Place.ESCAPE, Place.UNICODE, Place.LITERAL):
            return self.in_word(character)
        if character in SPACE:
            return Step.INSIDE
        if self.place is Place.COLON:
            return self.go(Place.VALUE, character == ":")
        if self.place is Place.COMMA:
            return self.behind_value(character)
        if self.place in (Place.FIRST_ITEM, Place.FIRST_KEY) and character == CLOSERS[self.open[-1]]:
            return self.close()
        if self.place in (Place.FIRST_KEY, Place.KEY):
            self.is_key = True
            return self.go(Place.STRING, character == '"')
        return self.begin(character)

    def begin(self, character: str) -> Step:
        if character == '"':
            return self.go(Place.STRING)
        if character in CLOSERS:
            self.open.append(character)
            return self.go(Place.FIRST_KEY if character == "{" else Place.FIRST_ITEM, len(self.open) <= MAX_DEPTH)
        if character in LITERALS:
            self.word = LITERALS[character][1:]
            return self.go(Place.LITERAL)
        self.word = character
        return self.go(Place.NUMBER, character in "-0123456789")

    def go(self, place: Place, right: bool = True) -> Step:
        self.place = place
        return Step.INSIDE if right else Step.WRONG

    def in_string(self, character: str) -> Step:
        if character == "\\":
            return self.go(Place.ESCAPE)
        if character != '"':
            return Step.INSIDE if character >= " " else Step.WRONG
        if self.is_key:
            self.is_key = False
            return self.go(Place.COLON)
        return self.end_value()

    def in_word(self, character: str) -> Step:
        """The rest of an escape or of a literal."""
        if self.place is Place.ESCAPE:
            self.word = "0000"
            return self.go(Place.UNICODE if character == "u" else Place.STRING, character in ESCAPES)
        expected, self.word = self.word[0], self.word[1:]
        if self.place is Place.UNICODE:
            return self.go(Place.UNICODE if self.word else Place.STRING, character in HEXADECIMAL)
        if character != expected:
            return Step.WRONG
        return Step.INSIDE if self.word else self.end_value()

    def in_number(self, character: str) -> Step:
        if character in NUMBER_CHARACTERS:
            self.word += character
            return Step.INSIDE
        if NUMBER.fullmatch(self.word) is None:
            return Step.WRONG
        if not self.open:
            return Step.BEHIND
        self.place = Place.COMMA
        return self.take(character)

    def behind_value(self, character: str) -> Step:
        if character == CLOSERS[self.open[-1]]:
            return self.close()
        return self.go(Place.KEY if self.open[-1] == "{" else Place.VALUE, character == ",")

    def close(self) -> Step:
        self.open.pop()
        return self.end_value()

    def end_value(self) -> Step:
        self.place = Place.COMMA
        return Step.INSIDE if self.open else Step.LAST
