# SPDX-License-Identifier: Apache-2.0
"""Commands of the supervisor: JSON objects, one a line, over an inherited pipe; reads never block."""

from logging import Logger
from typing import Any

from pontil.runtime.foundation.line_pipe import LinePipe, json_object


class CommandPipe:
    """The reading end of the pipe. `closed` is true once the supervisor has closed its end; no command comes after
    that."""

    def __init__(self, descriptor: int, logger: Logger) -> None:
        self.lines, self.logger = LinePipe(descriptor, whole_lines=True), logger

    @property
    def descriptor(self) -> int:
        return self.lines.descriptor

    @property
    def closed(self) -> bool:
        return self.lines.closed

    def take(self) -> list[dict[str, Any]]:
        """Return the commands that have arrived, in order."""
        lines = [] if self.closed else self.lines.read()
        return [command for line in lines if (command := self.parsed(line)) is not None]

    def parsed(self, line: bytes) -> dict[str, Any] | None:
        """Return the command in a line; log a line that is no command and return None."""
        command = json_object(line)
        if command is None:
            self.logger.error("the supervisor sent a line that is no command: %r", line[:100])
        return command
