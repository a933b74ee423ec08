# SPDX-License-Identifier: Apache-2.0
"""The age of a file among the processes of one machine: its time is set to the machine's monotonic clock, so that
neither a jump of the clock of the day nor a process that has another one makes it old or young."""

import os
import time
from pathlib import Path


def stamp(file: int | Path) -> None:
    """Set the time of a file, by its descriptor or path, to now. Raises OSError."""
    now = time.monotonic_ns()
    os.utime(file, ns=(now, now))


def age(path: Path) -> float:
    """Return the seconds since a file was stamped. Raises OSError."""
    return time.monotonic() - path.stat().st_mtime
