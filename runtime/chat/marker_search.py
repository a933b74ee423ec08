# SPDX-License-Identifier: Apache-2.0
"""Find one of some markers in text that comes in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pontil.runtime.chat.calls.json_scanner import SPACE

# Characters that may begin a call without a marker.
BRACKETS = "{["


class MarkerSearch:
    """White space directly before a marker counts as part of it. No marker may begin with another one. With `bare` a
    bracket that begins the text or a line is found too, unless `skips_brackets` is set, and is not taken.

    The work is in proportion to the text, however it is split.
    """

    def __init__(self, *markers: str, bare: bool = False) -> None:
        self.markers = markers
        self.marker = ""
        """The marker that was found, or empty for a bracket."""
        self.longest = max(map(len, markers), default=1)
        alternatives = [*markers, *BRACKETS] if bare else markers
        self.pattern = re.compile("|".join(map(re.escape, alternatives)))
        self.firsts = re.compile("|".join({re.escape(marker[0]) for marker in markers} or {r"(?!)"}))
        self.space: list[str] = []
        self.begun = ""
        """Text that may be the beginning of a marker."""
        self.in_line = False
        """True if the current line has text other than space."""
        self.skips_brackets = False

    @property
    def held(self) -> str:
        """The text that may belong to a marker; once one has come, the marker as it was written."""
        return "".join(self.space) + self.begun

    def feed(self, text: str) -> tuple[str, str | None]:
        """Return the text that certainly stands before the marker, and, once it has come, all text behind it."""
        text = self.begun + text
        match = next((candidate for candidate in self.pattern.finditer(text) if self.fits(text, candidate)), None)
        if match is not None:
            self.marker = match[0] if match[0] in self.markers else ""
            before = self.split(text[: match.start()])
            self.begun = self.marker
            self.in_line = True
            return before, text[match.start() + len(self.marker) :]
        at = next(self.beginnings(text), len(text))
        before = self.split(text[:at])
        self.begun = text[at:]
        return before, None

    def fits(self, text: str, match: re.Match[str]) -> bool:
        """A bracket counts at the beginning of a line only."""
        if match[0] in self.markers:
            return True
        if self.skips_brackets:
            return False
        at = match.start()
        while at and text[at - 1] in SPACE:
            at -= 1
            if text[at] == "\n":
                return True
        return not at and not self.in_line

    def beginnings(self, text: str) -> Iterator[int]:
        """The places from which on the text is a proper prefix of a marker."""
        for first in self.firsts.finditer(text, max(0, len(text) - self.longest + 1)):
            suffix = text[first.start() :]
            if any(marker.startswith(suffix) for marker in self.markers):
                yield first.start()

    def split(self, text: str) -> str:
        """Hold the white space at the end of a text, and return what is before it."""
        before = text.rstrip(SPACE)
        released_text = "".join((*self.space, before)) if before else ""
        if before:
            self.space = []
        if before or "\n" in text:
            self.in_line = "\n" not in text[len(before) :]
        if len(before) < len(text):
            self.space.append(text[len(before) :])
        return released_text

    def release(self) -> str:
        """Return the held text, which was no marker or is not needed any more."""
        held_text, self.space, self.begun = self.held, [], ""
        return held_text
