# SPDX-License-Identifier: Apache-2.0
"""A process of the system as its parent sees it: spawned, signalled, observed and reaped."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from pontil.launcher.child.activity import CpuActivity, look
from pontil.launcher.child.parent_death import parent_death_signal


@dataclass(frozen=True, slots=True)
class SpawnOrder:
    """A process to spawn: what it executes, the descriptors that it inherits, and the one that gets its output, if not
    the terminal."""

    command: Sequence[str]
    environment: Mapping[str, str]
    inherited: Sequence[int]
    output: int | None


class SystemProcess(Protocol):
    """A child process that leads a session, and so a group, of its own."""

    @property
    def pid(self) -> int: ...

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group. The group's number cannot be reused until its leader is reaped."""

    def has_ended(self) -> bool:
        """Return whether the process has exited; it stays a zombie until `reap`."""

    def reap(self) -> int:
        """Kill what is left of the group, and return the exit code as subprocess gives it. Call it only after
        `has_ended`."""

    def look(self, now: float) -> CpuActivity | None:
        """Sample its use of the CPU; None if it has ended."""


# Spawns a process. Raises OSError when the system cannot create it.
ProcessMaker = Callable[[SpawnOrder], SystemProcess]


class SpawnedProcess:
    """A process spawned by exec. Spawn from the main thread only: the parent-death signal fires when the spawning
    thread ends."""

    def __init__(self, order: SpawnOrder) -> None:
        self.process = subprocess.Popen(
            order.command,
            stdin=subprocess.DEVNULL, stdout=order.output, stderr=order.output,
            pass_fds=order.inherited, start_new_session=True, env=dict(order.environment),
            preexec_fn=parent_death_signal(signal.SIGKILL),
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap(self) -> int:
        self.signal(signal.SIGKILL)
        return self.process.wait()

    def look(self, now: float) -> CpuActivity | None:
        return look(self.pid, now)
