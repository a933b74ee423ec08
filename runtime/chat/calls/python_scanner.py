# SPDX-License-Identifier: Apache-2.0
"""Follows one literal of Python character by character, and translates it to JSON."""

from __future__ import annotations

import json
import re

from pontil.runtime.chat.calls.json_scanner import (
    HEXADECIMAL,
    MAX_DEPTH,
    MAX_NUMBER,
    NUMBER,
    SPACE,
    JsonScanner,
    JsonState,
    JsonStep,
)

CLOSERS = {"{": "}", "[": "]", "(": ")"}
JSON_BRACKETS = {"(": "[", ")": "]"}
# JSON's own words count too: models mix them up, and grammars ask for them.
WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
WORD = re.compile(r"[0-9A-Za-z_.+-]")
ESCAPES = {
    "n": "\\n", "t": "\\t", "r": "\\r", "b": "\\b", "f": "\\f", "\\": "\\\\", "'": "'", '"': '\\"', "/": "/",
    "\n": "", "a": "\\u0007", "v": "\\u000b", "0": "\\u0000",
}  # fmt: skip
# Characters of the code of an escape.
CODES = {"x": 2, "u": 4, "U": 8}
PLAIN = re.compile(r"[^'\"\\\x00-\x1f]+")


class PythonScanner(JsonScanner):
    """A string, number, True, False, None, list, tuple or dictionary with strings as keys. What has been translated is
    in `made`. A word, as a number, ends at the character behind it."""

    def __init__(self, made: list[str]) -> None:
        super().__init__()
        self.made = made
        self.quote = self.code = ""
        self.comma = False
        """True if a comma was read that is written before the next item, if there is one."""

    def take(self, character: str) -> JsonStep:
        if self.place is JsonState.STRING:
            return self.in_string(character)
        if self.place in (JsonState.ESCAPE, JsonState.UNICODE):
            return self.in_escape(character)
        if self.place is JsonState.LITERAL:
            return self.in_word(character)
        if character in SPACE:
            return JsonStep.INSIDE
        if self.place is JsonState.COMMA:
            return self.behind_value(character)
        if self.place is JsonState.COLON:
            self.made.append(": ")
            return self.go(JsonState.VALUE, character == ":")
        if self.open and self.place is not JsonState.VALUE and character == CLOSERS[self.open[-1]]:
            return self.close()
        if self.comma:
            self.made.append(", ")
            self.comma = False
        self.is_key = self.place in (JsonState.KEY, JsonState.FIRST_KEY)
        return self.begin(character)

    def begin(self, character: str) -> JsonStep:
        if character in "'\"":
            self.quote = character
            self.made.append('"')
            return self.go(JsonState.STRING)
        if self.is_key:
            return JsonStep.WRONG
        if character in CLOSERS:
            self.open.append(character)
            self.made.append(JSON_BRACKETS.get(character, character))
            place = JsonState.FIRST_KEY if character == "{" else JsonState.FIRST_ITEM
            return self.go(place, len(self.open) <= MAX_DEPTH)
        self.word = character
        return self.go(JsonState.LITERAL, WORD.match(character) is not None)

    def in_string(self, character: str) -> JsonStep:
        if character == "\\":
            return self.go(JsonState.ESCAPE)
        if character != self.quote:
            self.made.append(escaped(character))
            return JsonStep.INSIDE
        self.made.append('"')
        return self.go(JsonState.COLON) if self.is_key else self.end_value()

    def in_escape(self, character: str) -> JsonStep:
        if self.place is JsonState.UNICODE:
            self.code += character
            if character not in HEXADECIMAL:
                return JsonStep.WRONG
            return self.end_code() if len(self.code) == CODES[self.word] else JsonStep.INSIDE
        if character in CODES:
            self.word, self.code = character, ""
            return self.go(JsonState.UNICODE)
        # Python keeps the backslash of an escape that it does not know.
        self.made.append(ESCAPES.get(character, "\\\\" + escaped(character)))
        return self.go(JsonState.STRING)

    def end_code(self) -> JsonStep:
        number = int(self.code, 16)
        if number > 0x10FFFF:
            return JsonStep.WRONG
        self.made.append(json.dumps(chr(number))[1:-1])
        return self.go(JsonState.STRING)

    def in_word(self, character: str) -> JsonStep:
        if WORD.match(character) is not None:
            self.word += character
            return JsonStep.INSIDE if len(self.word) <= MAX_NUMBER else JsonStep.WRONG
        meaning = meaning_of(self.word)
        if meaning is None:
            return JsonStep.WRONG
        self.made.append(meaning)
        return self.end_word(character)

    def behind_value(self, character: str) -> JsonStep:
        if character == CLOSERS[self.open[-1]]:
            return self.close()
        self.comma = True
        # A closer may follow the last comma.
        return self.go(JsonState.KEY if self.open[-1] == "{" else JsonState.FIRST_ITEM, character == ",")

    def close(self) -> JsonStep:
        self.comma = False
        closer = CLOSERS[self.open[-1]]
        self.made.append(JSON_BRACKETS.get(closer, closer))
        return super().close()

    def plain_end(self, text: str, position: int) -> int:
        """Take the run of characters that only extend a string, and return its end."""
        plain = PLAIN.match(text, position) if self.place is JsonState.STRING else None
        if plain is None:
            return position
        self.made.append(plain[0])
        return plain.end()


def escaped(text: str) -> str:
    """The inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def meaning_of(word: str) -> str | None:
    """The JSON of a word or a number of Python."""
    if word in WORDS:
        return WORDS[word]
    number = word.removeprefix("+")
    if NUMBER.fullmatch(number) is not None:
        return number
    # A number may begin or end with its point, and have underscores between digits.
    number = re.sub(r"(?<=\d)_(?=\d)", "", number)
    number = re.sub(r"(?<!\d)\.(?=\d)", "0.", number)
    number = re.sub(r"(?<=\d)\.(?!\d)", ".0", number)
    return number if NUMBER.fullmatch(number) is not None else None


def json_of(text: str) -> str | None:
    """The JSON of a whole literal; None if the text is none."""
    json_pieces: list[str] = []
    scanner = PythonScanner(json_pieces)
    # A number or a word ends at the character behind it.
    steps = (scanner.take(character) for character in f"{text.strip(SPACE)}\n")
    count, step = next(((n, step) for n, step in enumerate(steps) if step is not JsonStep.INSIDE), (0, JsonStep.WRONG))
    size = {JsonStep.LAST: count + 1, JsonStep.BEHIND: count}.get(step)
    return "".join(json_pieces) if size == len(text.strip(SPACE)) else None
