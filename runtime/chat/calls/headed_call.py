# SPDX-License-Identifier: Apache-2.0
"""One tool call whose function is named in text before the arguments."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from pontil.runtime.chat.calls.body import CallBody, CallState
from pontil.runtime.chat.calls.json_scanner import JsonScanner, JsonState, JsonStep

# Parameters of each function, as a JSON schema; None if nothing is known of them.
Functions = Mapping[str, Mapping[str, Any] | None]
# Characters of the text before the arguments; a name has at most 128.
MAX_HEAD = 256
PLAIN_JSON = re.compile(r'[^"\\\x00-\x1f]+')


class ArgumentReader(ABC):
    """Translates a call's arguments to JSON, which is collected in `made`."""

    def __init__(self) -> None:
        self.made: list[str] = []

    @abstractmethod
    def take(self, character: str) -> JsonStep:
        """Take one character: INSIDE, LAST or WRONG."""

    def plain_end(self, text: str, position: int) -> int:
        """Take the run of characters that only extend a text, and return its end."""
        return position


class JsonArguments(ArgumentReader):
    """A JSON object."""

    def __init__(self) -> None:
        super().__init__()
        self.scanner = JsonScanner()

    def take(self, character: str) -> JsonStep:
        if self.scanner.fresh and character != "{":
            return JsonStep.WRONG
        step = self.scanner.take(character)
        if step is not JsonStep.WRONG:
            self.made.append(character)
        return step

    def plain_end(self, text: str, position: int) -> int:
        plain = PLAIN_JSON.match(text, position) if self.scanner.place is JsonState.STRING else None
        if plain is None:
            return position
        self.made.append(plain[0])
        return plain.end()


class HeadedCall(CallBody):
    """A call that begins with a text up to the character `stop`, all of which matches `head`; its groups are `name` and
    maybe `id`. `keep` says that the stop belongs to the arguments."""

    looked_through_again = True

    def __init__(
        self,
        functions: Functions,
        head: re.Pattern[str],
        keep: bool,
        make_arguments: Callable[[Mapping[str, Any] | None], ArgumentReader],
    ) -> None:
        super().__init__()
        self.functions, self.head, self.keep, self.make_arguments = functions, head, keep, make_arguments
        # The pattern ends with this one character.
        self.stop = head.pattern[-1]
        self.text: list[str] = []
        self.size = 0
        self.arguments: ArgumentReader | None = None

    def take(self, character: str) -> CallState:
        self.size += 1
        if self.state is CallState.POSSIBLE and self.size > MAX_HEAD:
            self.state = CallState.WRONG
        elif self.arguments is not None:
            self.pass_on(character, self.arguments)
        elif character == self.stop:
            self.begin(character)
        else:
            self.text.append(character)
        return self.state

    def begin(self, stop: str) -> None:
        match = self.head.fullmatch("".join((*self.text, stop)))
        if match is None or match["name"] not in self.functions:
            self.state = CallState.WRONG
            return
        self.name, self.identity = match["name"], match.groupdict().get("id")
        self.arguments = self.make_arguments(self.functions[match["name"]])
        if self.keep:
            self.pass_on(stop, self.arguments)

    def pass_on(self, character: str, arguments: ArgumentReader) -> None:
        step = arguments.take(character)
        if step is JsonStep.WRONG:
            self.state = CallState.WRONG
        elif step is JsonStep.LAST:
            self.state = CallState.COMPLETE
        elif arguments.made:
            self.state = CallState.BEGUN

    def take_plain(self, text: str, position: int) -> int:
        if self.arguments is None or self.state is not CallState.BEGUN:
            return position
        return self.arguments.plain_end(text, position)

    def take_arguments(self) -> str:
        if self.arguments is None:
            return ""
        new = "".join(self.arguments.made)
        self.arguments.made.clear()
        return new
