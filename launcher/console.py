# SPDX-License-Identifier: Apache-2.0
"""What the person at the terminal sees: the launcher's own lines, the children's prefixed ones, and progress."""

import re
import time
from collections.abc import Callable
from typing import TextIO

# On a pipe or in a journal, one line of the same progress at most this often, in seconds.
PROGRESS_EVERY = 5.0


class Console:
    """Lines go to `out`, whole and at once. When nobody reads any more the lines are dropped and the launch goes on."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.out = out
        self.clock = clock
        self.terminal = out.isatty()
        self.unfinished = False
        self.shown: dict[str, tuple[str, float]] = {}

    def line(self, text: str) -> None:
        clear, self.unfinished = "\r\x1b[K" if self.unfinished else "", False
        self.write(f"{clear}{text}\n")

    def child_line(self, name: str, text: str) -> None:
        self.line(f"{name} | {text}")

    def progress(self, name: str, text: str) -> None:
        """On a terminal the last progress stays in place; elsewhere counting alone makes no new line."""
        if self.terminal:
            self.write(f"\r\x1b[K{name} | {text}")
            self.unfinished = True
        elif self.is_news(name, re.sub(r"[\d.]+", "#", text)):
            self.child_line(name, text)

    def is_news(self, name: str, kind: str) -> bool:
        last, at = self.shown.get(name, ("", 0.0))
        if kind == last and self.clock() - at < PROGRESS_EVERY:
            return False
        self.shown[name] = (kind, self.clock())
        return True

    def write(self, text: str) -> None:
        try:
            self.out.write(text)
            self.out.flush()
        except (OSError, ValueError):
            self.terminal = False
