# SPDX-License-Identifier: Apache-2.0
"""The reading end of a pipe that carries lines; reads never block."""

import json
import os
from typing import Any

CHUNK_BYTES = 65536
# Longer lines are handed on in pieces, so that a child cannot make the supervisor buffer its whole output.
MAX_LINE_BYTES = 1 << 20
MAX_CHUNKS_AT_END = 64


def json_object(line: bytes | str) -> dict[str, Any] | None:
    """Return the object in a line of JSON; None for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class LinePipe:
    """A reader that owns the descriptor. `closed` is true once every writer is gone and all was read. With
    `whole_lines`, a line counts once it has ended, however long it is, and an unfinished line of a writer is
    dropped."""

    def __init__(self, descriptor: int, whole_lines: bool = False) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor, self.whole_lines = descriptor, whole_lines
        self.partial = b""
        self.closed = False

    def fileno(self) -> int:
        return self.descriptor

    def read(self) -> list[bytes]:
        """Return the lines of one chunk, without line ends. The last line before the pipe closes needs no line end."""
        try:
            chunk = os.read(self.descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return []
        self.closed = not chunk
        *lines, self.partial = (self.partial + chunk).split(b"\n")
        if self.partial and not self.whole_lines and (self.closed or len(self.partial) > MAX_LINE_BYTES):
            lines.append(self.partial)
            self.partial = b""
        return lines

    def read_rest(self) -> list[bytes]:
        """Return all remaining lines, for a pipe whose writer has exited."""
        lines: list[bytes] = []
        for _ in range(MAX_CHUNKS_AT_END):
            if self.closed or not (new_lines := self.read()) and not self.partial:
                break
            lines += new_lines
        return lines

    def close(self) -> None:
        os.close(self.descriptor)
