# SPDX-License-Identifier: Apache-2.0
"""The interface of a call's readers: the name and the arguments of one call, character by character."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto


class CallState(Enum):
    """The state of a possible call: it may turn out to be none until it has a known name and the beginning of its
    arguments."""

    POSSIBLE = auto()
    BEGUN = auto()
    COMPLETE = auto()
    WRONG = auto()


class CallBody(ABC):
    """One call. Each character costs the same, however many came before."""

    looked_through_again = False
    """True if text that turned out to be no call, which is then short, may hold a marker of a call."""

    def __init__(self) -> None:
        self.state = CallState.POSSIBLE
        self.name: str | None = None
        self.identity: str | None = None
        """The id that the model has given to the call, if its format has ids."""

    @abstractmethod
    def take(self, character: str) -> CallState:
        """Take one character. Must not be called after the call is complete or wrong. A wrong character is not part
        of it."""

    @abstractmethod
    def take_plain(self, text: str, position: int) -> int:
        """Take the run of characters that only extend a string of the arguments, and return its end. Equals as many
        calls of `take`."""

    @abstractmethod
    def take_arguments(self) -> str:
        """Return the arguments that are known and were not taken yet, as JSON."""

    @property
    def loose(self) -> str:
        """Text behind name and arguments, which is content if the call goes wrong there."""
        return ""
