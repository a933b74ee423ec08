# SPDX-License-Identifier: Apache-2.0
"""A process of the system as its parent sees it: signalled, observed and reaped."""

import os
import signal
from contextlib import suppress
from typing import Protocol

from pontil.launcher.child.activity import CpuActivity, look


class SystemProcess(Protocol):
    """A child process that leads a session, and so a group, of its own."""

    pid: int

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group. The group's number cannot be reused until its leader is reaped."""

    def has_ended(self) -> bool:
        """Return whether the process has exited; it stays a zombie until `reap`."""

    def reap(self) -> int:
        """Kill what is left of the group, and return the exit code as subprocess gives it. Call it only after
        `has_ended`."""

    def look(self, now: float) -> CpuActivity | None:
        """Sample its use of the CPU; None if it has ended."""


class GroupLeader:
    """A process that leads a group, by its pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap(self) -> int:
        self.signal(signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def look(self, now: float) -> CpuActivity | None:
        return look(self.pid, now)
