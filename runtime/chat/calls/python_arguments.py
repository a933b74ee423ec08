# SPDX-License-Identifier: Apache-2.0
"""Arguments of a tool call in Python's notation, `city="Oslo", days=3)`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pontil.runtime.chat.calls.headed_call import ArgumentReader
from pontil.runtime.chat.calls.json_scanner import SPACE, JsonStep
from pontil.runtime.chat.calls.python_scanner import PythonScanner

# Characters of an argument's name; Python allows letters of other scripts too.
LETTER = re.compile(r"\w")
MAX_NAME = 128
END, BETWEEN = ")", ","


class PythonArguments(ArgumentReader):
    """Arguments by name, up to the closing parenthesis."""

    def __init__(self) -> None:
        super().__init__()
        self.step: Callable[[str], JsonStep] = self.find
        self.word = ""
        self.any = False
        self.value = PythonScanner(self.made)

    def take(self, character: str) -> JsonStep:
        return self.step(character)

    def find(self, character: str) -> JsonStep:
        """Expect a name or the end."""
        if character in SPACE:
            return JsonStep.INSIDE
        if character == END:
            return self.end()
        self.word, self.step = "", self.name
        return self.name(character)

    def name(self, character: str) -> JsonStep:
        if LETTER.match(character) is not None:
            self.word += character
            return JsonStep.INSIDE if len(self.word) <= MAX_NAME else JsonStep.WRONG
        self.step = self.equals
        return self.equals(character) if self.word else JsonStep.WRONG

    def equals(self, character: str) -> JsonStep:
        if character in SPACE:
            return JsonStep.INSIDE
        if character != "=":
            return JsonStep.WRONG
        self.made.append(f"{', ' if self.any else '{'}{json.dumps(self.word, ensure_ascii=False)}: ")
        self.any = True
        self.value, self.step = PythonScanner(self.made), self.in_value
        return JsonStep.INSIDE

    def in_value(self, character: str) -> JsonStep:
        step = self.value.take(character)
        if step is JsonStep.LAST:
            self.step = self.behind
        elif step is JsonStep.BEHIND:
            self.step = self.behind
            return self.behind(character)
        return JsonStep.WRONG if step is JsonStep.WRONG else JsonStep.INSIDE

    def behind(self, character: str) -> JsonStep:
        if character in SPACE:
            return JsonStep.INSIDE
        if character == END:
            return self.end()
        self.step = self.find
        return JsonStep.INSIDE if character == BETWEEN else JsonStep.WRONG

    def end(self) -> JsonStep:
        self.made.append("}" if self.any else "{}")
        return JsonStep.LAST

    def plain_end(self, text: str, position: int) -> int:
        return self.value.plain_end(text, position) if self.step == self.in_value else position
