# SPDX-License-Identifier: Apache-2.0
"""A memory of checks that need no repetition: those that passed since the system has booted."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

# The system's name for the time since it booted, which another machine never has.
BOOT = Path("/proc/sys/kernel/random/boot_id")
MOST_KEPT = 256


class PassedChecks:
    """The checks that passed since this system booted, by name, each with the state of what it looked at. They are in a
    file that processes share, and that may be lost at any time: a check is then done again. Without a path, or where
    the system does not say when it booted, nothing is known."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def has(self, name: str, state: str) -> bool:
        """Return whether the check of this name has passed in this state."""
        return self.read().get(name) == state

    def add(self, name: str, state: str) -> None:
        """Note that a check has passed. Of two processes that do so at once one may be forgotten."""
        boot = boot_id()
        if self.path is None or boot is None:
            return
        passed = {other: known for other, known in self.read().items() if other != name}
        kept = dict(list(passed.items())[1 - MOST_KEPT :]) | {name: state}
        written = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with suppress(OSError):
            written.write_text(json.dumps({"boot": boot, "passed": kept}))
            written.replace(self.path)

    def read(self) -> dict[str, object]:
        """Return what has passed, by name."""
        boot = boot_id()
        try:
            told = None if self.path is None or boot is None else json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        if not isinstance(told, dict) or told.get("boot") != boot or not isinstance(told.get("passed"), dict):
            return {}
        passed: dict[str, object] = told["passed"]
        return passed


def boot_id() -> str | None:
    try:
        return BOOT.read_text().strip() or None
    except OSError:
        return None


def state_of_file(file: IO[bytes]) -> str:
    """Return what changes when somebody writes to a file, whatever time is given to it afterwards."""
    found = os.fstat(file.fileno())
    return "-".join(map(str, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)))
