# SPDX-License-Identifier: Apache-2.0
"""The ways in which every fetch shares a host with others, shows itself and reaches the disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.foundation.file_lock import lock_within

LOCK_TIMEOUT = 600.0


@contextmanager
def only_one(lock: Path, folder: Path) -> Iterator[None]:
    """Hold an advisory lock; the kernel releases it when the process ends. Whoever waits does so as long as the
    files of the folder grow. Raises ModelError."""
    with lock.open("w") as file:
        seen = -1
        while not lock_within(file, LOCK_TIMEOUT, lambda: say("Another process fetches the model: waiting for it")):
            if (now := bytes_in(folder)) == seen:
                raise ModelError(f"another process has been fetching the model for too long: end it (it holds {lock})")
            seen = now
        yield


def bytes_in(folder: Path) -> int:
    """Return how large the files of a folder are, as far as they stay there meanwhile."""
    total = 0
    for entry in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += entry.lstat().st_size
    return total


def sync(place: Path) -> None:
    """Have a file, or those of a folder, be on the disk: else a power cut may leave their names without content."""
    for path in (place, *place.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show_progress(what: str, done: int, total: int) -> None:
    """One line that grows on a terminal; one line when it is complete elsewhere."""
    end = "\n" if done >= total else "\r"
    if sys.stderr.isatty() or end == "\n":
        line = f"{what} {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        print(line, end=end, file=sys.stderr, flush=True)
