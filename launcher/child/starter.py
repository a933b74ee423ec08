# SPDX-License-Identifier: Apache-2.0
"""The start of a process of a launch: what it is given, and one way, which is exec."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pontil.launcher.child.parent_death import parent_death_signal

# Makes a process's environment from the number of its threads.
EnvironmentMaker = Callable[[int | None], Mapping[str, str]]


class StartedProcess(Protocol):
    """A process that is this one's child: it stays a zombie until it is waited for."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Wait for its end, and return the exit code, or minus the number of the signal that killed it."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """One process to start: the words after the command, its threads (None for one that does not compute), the open
    files that it inherits under the same numbers, and the file for what it prints (None for this process's own)."""

    words: Sequence[str]
    threads: int | None
    inherited: Sequence[int]
    output: int | None


class ProcessStarter(Protocol):
    """A way to start processes. Call it on the main thread only: a process dies with the thread that started it."""

    def start(self, asked: ProcessStart) -> StartedProcess:
        """Start a process, which leads a session of its own. Raises OSError when the system cannot create it."""
        ...


@dataclass(frozen=True, slots=True)
class ExecStarter:
    """The start of a process by exec: it imports everything itself."""

    command: Sequence[str]
    environment: EnvironmentMaker

    def start(self, asked: ProcessStart) -> StartedProcess:
        return subprocess.Popen(
            [*self.command, *asked.words],
            stdin=subprocess.DEVNULL, stdout=asked.output, stderr=asked.output, pass_fds=asked.inherited,
            start_new_session=True, env=dict(self.environment(asked.threads)),
            preexec_fn=parent_death_signal(signal.SIGKILL),
        )  # fmt: skip


def parent_word() -> str:
    """Return the word that tells a process of whom it is the child."""
    return f"--parent={os.getpid()}"
