# SPDX-License-Identifier: Apache-2.0
"""One tool call, `{"name": …, "arguments": {…}}`, read character by character."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from enum import Enum, auto

from pontil.runtime.chat.calls.body import CallBody, CallState
from pontil.runtime.chat.calls.json_scanner import SPACE, JsonScanner, JsonState, JsonStep

NAME = "name"
# The keys of both families: models mix them up.
ARGUMENTS = ("arguments", "parameters")
# Other keys that some models write into a call; they are ignored.
OTHERS = ("type", "id")
# Characters of a name or a key in its JSON spelling; the longest name of a tool is far shorter.
MAX_WORD = 1024
PLAIN = re.compile(r'[^"\\\x00-\x1f]+')


class CallPosition(Enum):
    """The position in the object of the next character."""

    BEFORE = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    NEXT = auto()


class CallObject(CallBody):
    """A call of one of these functions. Members come in any order, each once; any member other than those above makes
    the object no call."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.names = names
        self.unread: list[str] = []
        self.behind: list[str] = []
        self.members: set[str] = set()
        self.within = CallPosition.BEFORE
        self.scanner = JsonScanner()
        self.word = ""
        self.key = ""

    @property
    def loose(self) -> str:
        return "".join(self.behind)

    def take(self, character: str) -> CallState:
        loose = self.state is CallState.BEGUN and not self.in_arguments
        if not self.fits(character):
            self.state = CallState.WRONG
        elif loose:
            self.behind.append(character)
        elif self.state is CallState.POSSIBLE and self.name is not None and self.unread:
            self.state = CallState.BEGUN
        return self.state

    def take_plain(self, text: str, position: int) -> int:
        if self.scanner.place is not JsonState.STRING or not self.in_arguments:
            return position
        plain = PLAIN.match(text, position)
        if plain is None:
            return position
        self.unread.append(plain[0])
        return plain.end()

    @property
    def in_arguments(self) -> bool:
        return self.within is CallPosition.VALUE and self.key in ARGUMENTS

    def take_arguments(self) -> str:
        new, self.unread = "".join(self.unread), []
        return new

    def fits(self, character: str) -> bool:
        if self.within is CallPosition.VALUE:
            return self.in_value(character)
        if self.within is CallPosition.KEY:
            return self.in_key(character)
        if character in SPACE:
            return True
        if self.within is CallPosition.NEXT and character == "}":
            self.state = CallState.COMPLETE
            return self.name is not None and ARGUMENTS[0] in self.members
        return self.between(character)

    def between(self, character: str) -> bool:
        """Expect the one character that may stand here."""
        expected_character, then = {
            CallPosition.BEFORE: ("{", CallPosition.FIRST_KEY),
            CallPosition.FIRST_KEY: ('"', CallPosition.KEY),
            CallPosition.COLON: (":", CallPosition.VALUE),
            CallPosition.NEXT: (",", CallPosition.FIRST_KEY),
        }[self.within]
        self.within, self.scanner = then, JsonScanner()
        if then is CallPosition.KEY:
            self.word = character
            self.scanner.take(character)
        return character == expected_character

    def in_key(self, character: str) -> bool:
        step = self.scanner.take(character)
        self.word += character
        if step is not JsonStep.LAST:
            return step is JsonStep.INSIDE and len(self.word) <= MAX_WORD
        self.key, self.within, self.word = json.loads(self.word), CallPosition.COLON, ""
        member = ARGUMENTS[0] if self.key in ARGUMENTS else self.key
        right = self.key in (NAME, *ARGUMENTS, *OTHERS) and member not in self.members
        self.members.add(member)
        return right

    def in_value(self, character: str) -> bool:
        begins = self.scanner.fresh
        if begins and character in SPACE:
            return True
        step = self.scanner.take(character)
        if step is JsonStep.BEHIND:
            self.within = CallPosition.NEXT
            return self.fits(character)
        if step is JsonStep.LAST:
            self.within = CallPosition.NEXT
        if step is JsonStep.WRONG or (begins and self.key in ARGUMENTS and character != "{"):
            return False
        if self.key in ARGUMENTS:
            self.unread.append(character)
        return self.key != NAME or self.in_name(character, step)

    def in_name(self, character: str, step: JsonStep) -> bool:
        self.word += character
        if step is JsonStep.LAST:
            name = json.loads(self.word)
            self.name = name if name in self.names else None
            return self.name is not None
        return self.word[0] == '"' and len(self.word) <= MAX_WORD
