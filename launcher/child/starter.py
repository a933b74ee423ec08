# SPDX-License-Identifier: Apache-2.0
"""The start of a process of a launch: what it is given, and one way, which is exec."""

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pontil.launcher.child.parent_death import parent_death_signal
from pontil.launcher.child.system_process import GroupLeader, SystemProcess

# Makes a process's environment from the number of its threads.
EnvironmentMaker = Callable[[int | None], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """One process to start: the words after the command, its threads (None for one that does not compute), the open
    files that it inherits under the same numbers, and the file for what it prints (None for the terminal)."""

    words: Sequence[str]
    threads: int | None
    inherited: Sequence[int]
    output: int | None


class ProcessStarter(Protocol):
    """A way to start processes. Call it on the main thread only: a process dies with the thread that started it."""

    def open(self, selector: selectors.BaseSelector, clock: Callable[[], float]) -> None:
        """Prepare; what takes time is waited for by the selector."""
        ...

    @property
    def is_warming(self) -> bool:
        """Return whether processes that compute should wait a little."""
        ...

    def start(self, process_start: ProcessStart) -> SystemProcess:
        """Start a process, which leads a session of its own. Raises OSError when the system cannot create it."""
        ...

    def close(self) -> None: ...


class SpawnedProcess(GroupLeader):
    """A process that Python's own module has spawned."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(process.pid)
        self.process = process

    def reap(self) -> int:
        self.signal(signal.SIGKILL)
        return self.process.wait()


@dataclass(frozen=True, slots=True)
class ExecStarter:
    """The start of a process by exec: it imports everything itself."""

    command: Sequence[str]
    environment: EnvironmentMaker
    is_warming = False

    def open(self, selector: selectors.BaseSelector, clock: Callable[[], float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def start(self, process_start: ProcessStart) -> SystemProcess:
        return SpawnedProcess(
            subprocess.Popen(
                [*self.command, *process_start.words],
                stdin=subprocess.DEVNULL,
                stdout=process_start.output,
                stderr=process_start.output,
                pass_fds=process_start.inherited,
                start_new_session=True,
                env=dict(self.environment(process_start.threads)),
                preexec_fn=parent_death_signal(signal.SIGKILL),
            )
        )


def parent_word() -> str:
    """Return the word that tells a process of whom it is the child."""
    return f"--parent={os.getpid()}"
