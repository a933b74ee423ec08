# SPDX-License-Identifier: Apache-2.0
"""The single output stream of a launch: the launcher's own lines, its children's logs, and the progress of starting
children.

On a terminal the launcher's own lines are plain, and each starting child has one live line, below all others, that
changes in place. Elsewhere everything is log lines, as text or as JSON.
"""

import os
import re
import time
from collections.abc import Callable
from typing import Literal, TextIO

from pontil.launcher.logs.log_files import LogFiles
from pontil.launcher.logs.log_line import LAUNCHER, LogLine
from pontil.launcher.logs.non_blocking_writer import NonBlockingWriter

# Shortest time between two lines of the same progress on a pipe or in a journal, in seconds.
PROGRESS_EVERY = 5.0
# Columns to assume if a terminal does not tell its width.
WIDTH = 80


def own_line(text: str) -> LogLine:
    """Return a line of the launcher about its own log."""
    return LogLine(time.time(), "warning", LAUNCHER, text)


class Console:
    """Writes whole lines to `out` at once, and to `files` if there are any. `out` is a NonBlockingWriter: without a
    reader, lines are dropped and the launch goes on. `drawn` of the `live` lines are on the screen, with the cursor
    after the last."""

    def __init__(
        self,
        out: TextIO | NonBlockingWriter,
        form: Literal["text", "json"] = "text",
        files: LogFiles | None = None,
        clock: Callable[[], float] = lambda: time.monotonic(),
        wall: Callable[[], float] = lambda: time.time(),
    ) -> None:
        self.out, self.form, self.files = out, form, files
        self.clock, self.wall = clock, wall
        self.terminal = out.isatty() and form == "text"
        self.live: dict[str, str] = {}
        self.drawn = 0
        self.shown: dict[str, tuple[str, float]] = {}

    def line(self, text: str) -> None:
        """Write a line of the launcher itself."""
        self.say(LogLine(self.wall(), "info", LAUNCHER, text), text)

    def child_line(self, name: str, text: str) -> None:
        """Write a line of the launcher about a child, or repeat a line of the child's output."""
        self.say(LogLine(self.wall(), "info", name, text), f"{name} | {text}")

    def entry(self, line: LogLine) -> None:
        """Write a line that a child has logged or printed."""
        self.say(line, line.text)

    def failed(self, text: str) -> None:
        """Write why the launch ends. In text form only to the files: the command itself prints it last of all."""
        line = LogLine(self.wall(), "error", LAUNCHER, text)
        if self.form == "json":
            self.show(line.json)
        if self.files:
            self.files.write(line.process, self.formed(line))

    def say(self, line: LogLine, plain: str) -> None:
        """Write a log line; `plain` is its form on a terminal."""
        self.show(plain if self.terminal else self.formed(line))
        complaint = self.files.write(line.process, self.formed(line)) if self.files else None
        if complaint is not None:
            self.show(complaint if self.terminal else self.formed(LogLine(line.time, "error", LAUNCHER, complaint)))

    def formed(self, line: LogLine) -> str:
        return line.json if self.form == "json" else line.text

    def progress(self, name: str, text: str) -> None:
        """Show progress. Off a terminal, a change of numbers alone makes no new line."""
        if self.terminal:
            self.live[name] = text
            self.write(self.erased() + self.drawing())
        elif self.is_news(name, re.sub(r"[\d.]+", "#", text)):
            self.child_line(name, text)

    def settle(self, name: str | None = None) -> None:
        """Remove the live line of this child, or of every one: it is no longer starting."""
        child_names = [child_name for child_name in self.live if name in (None, child_name)]
        for child_name in child_names:
            del self.live[child_name]
        if child_names:
            self.write(self.erased() + self.drawing())

    def is_news(self, name: str, kind: str) -> bool:
        last, at = self.shown.get(name, ("", 0.0))
        if kind == last and self.clock() - at < PROGRESS_EVERY:
            return False
        self.shown[name] = (kind, self.clock())
        return True

    def show(self, text: str) -> None:
        """Write above the live lines."""
        self.write(f"{self.erased()}{text}\n{self.drawing()}")

    def erased(self) -> str:
        """Return the escape sequence that removes the live lines from the screen."""
        if not self.drawn:
            return ""
        up = f"\x1b[{self.drawn - 1}A" if self.drawn > 1 else ""
        self.drawn = 0
        return f"\r{up}\x1b[J"

    def drawing(self) -> str:
        """Return the text that draws the live lines. Each is cut to the screen's width: it would take two lines
        otherwise."""
        room, names = self.width - 1, max(map(len, self.live), default=0)
        self.drawn = len(self.live)
        return "\n".join(f"{name:<{names}} | {text}"[:room] for name, text in self.live.items())

    @property
    def width(self) -> int:
        try:
            return os.get_terminal_size(self.out.fileno()).columns or WIDTH
        except (OSError, ValueError):
            return WIDTH

    def write(self, text: str) -> None:
        try:
            self.out.write(text)
            self.out.flush()
        except (OSError, ValueError):
            self.terminal = False
