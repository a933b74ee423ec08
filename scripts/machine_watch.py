# SPDX-License-Identifier: Apache-2.0
"""Other programs on this machine while a launch is measured."""

import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.launcher.tools.planner.other_programs import busy_seconds  # noqa: E402


class MachineWatch:
    """Says how much of the machine others took, since it was made, beside this process and that of a launch."""

    def __init__(self, pid: int) -> None:
        self.pid, self.begun = pid, time.monotonic()
        self.all, self.own = busy_seconds(), self.own_seconds()

    def own_seconds(self) -> float:
        root = psutil.Process(self.pid)
        seconds = float(sum(psutil.Process().cpu_times()[:2]))
        for one in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                seconds += sum(one.cpu_times()[:2])
        return seconds

    def others(self) -> float:
        """Return the cores that others used."""
        used = busy_seconds() - self.all - (self.own_seconds() - self.own)
        return max(0.0, used / (time.monotonic() - self.begun))
