# SPDX-License-Identifier: Apache-2.0
"""A log file for each process of a launch, written by the launcher from their pipes, so that a killed child's output is
kept."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pontil.launcher.control.run_directory import take_lock
from pontil.launcher.foundation.errors import LaunchError

# Seconds after a failure until writing is tried again.
RETRY_AFTER = 10.0
# The path may be a pipe: opening one blocks until it has a reader, unless O_NONBLOCK is set.
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(slots=True)
class OpenLog:
    """An open log file: its descriptor and its size in bytes."""

    descriptor: int
    length: int


class LogFiles:
    """A folder of rotated logs. `folder/NAME.log` holds at most `size` bytes; then it becomes `NAME.log.1`, that one
    `NAME.log.2`, and so on up to `count`. Only their owner may read them. One launch at a time writes to a folder.

    A full disk stops no process: lines are left out until writing is possible again.
    """

    def __init__(
        self, folder: Path, size: int, count: int, clock: Callable[[], float] = lambda: time.monotonic()
    ) -> None:
        self.folder, self.size, self.count, self.clock = folder, size, count, clock
        self.files: dict[str, OpenLog] = {}
        self.lock: int | None = None
        self.failed_at: float | None = None
        self.left_out = 0

    def open(self) -> None:
        """Make the folder, for its owner only, and lock it. Raises LaunchError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.lock = take_lock(self.folder / ".lock", wait=False)
        except OSError as error:
            raise LaunchError(
                f"Logs cannot be written to {self.folder} ({error.strerror}): give --log-dir a folder of yours."
            ) from error
        if self.lock is None:
            raise LaunchError(f"Another launch writes its logs to {self.folder}: give each a --log-dir of its own.")

    def close(self) -> None:
        for file in self.files.values():
            os.close(file.descriptor)
        self.files.clear()
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def write(self, process: str, text: str) -> str | None:
        """Write one entry. Return a message when the files start to fail or can be written again."""
        if self.failed_at is not None and self.clock() - self.failed_at < RETRY_AFTER:
            self.left_out += 1
            return None
        try:
            self.append(process.replace(":", "-"), f"{text}\n".encode(errors="replace"))
        except OSError as error:
            first, self.failed_at = self.failed_at is None, self.clock()
            self.left_out += 1
            return f"logs cannot be written to {self.folder} ({error.strerror}): trying again" if first else None
        if self.failed_at is None:
            return None
        self.failed_at, lost, self.left_out = None, self.left_out, 0
        return f"logs are written to {self.folder} again; {lost} lines are missing there"

    def append(self, name: str, data: bytes) -> None:
        file = self.files.get(name) or self.opened(name)
        if file.length and file.length + len(data) > self.size:
            os.close(self.files.pop(name).descriptor)
            self.rotate(name)
            file = self.opened(name)
        while data:
            written_bytes = os.write(file.descriptor, data)
            file.length += written_bytes
            data = data[written_bytes:]

    def opened(self, name: str) -> OpenLog:
        descriptor = os.open(self.folder / f"{name}.log", FLAGS, 0o600)
        os.fchmod(descriptor, 0o600)
        file = self.files[name] = OpenLog(descriptor, os.fstat(descriptor).st_size)
        return file

    def rotate(self, name: str) -> None:
        path = self.folder / f"{name}.log"
        paths = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, self.count + 1))]
        for newer, older in reversed(list(zip(paths, paths[1:], strict=False))):
            with suppress(FileNotFoundError):
                newer.replace(older)
        if not self.count:
            path.unlink(missing_ok=True)
