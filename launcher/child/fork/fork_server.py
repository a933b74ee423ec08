# SPDX-License-Identifier: Apache-2.0
"""The launcher's end of the fork server, a process that has imported what workers need and becomes each of them by a
fork: torch is loaded once for all workers of a launch, and a worker that died is back without loading it again."""

import json
import os
import select
import selectors
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pontil.launcher.child.parent_death import process_control
from pontil.launcher.child.starter import ExecStarter, ProcessStart, parent_word
from pontil.launcher.child.system_process import GroupLeader, SystemProcess

PR_SET_CHILD_SUBREAPER = 36
# Seconds within which a fork is answered. A server that takes longer is stuck, and is used no more.
ANSWER_WITHIN = 5.0
LARGEST_ANSWER = 64
# Seconds after which a server that is not ready is waited for no longer.
WARM_WITHIN = 60.0
# Room in the server's command line for that of a fork, which is written over it.
ROOM = "--room=" + "." * 128
# Variables that pin threads to cores where OpenMP is loaded, which is before a fork knows its cores.
PINNING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


class ForkServer:
    """A starter that forks processes that compute, once its server is ready, and starts all others by exec. Whatever
    goes wrong with the server, they are started by exec too.

    Libraries have read the server's environment, in which they have one thread: a worker itself sets how many."""

    def __init__(self, command: Sequence[str], by_exec: ExecStarter) -> None:
        """Name the server's command, which gets the parent's pid and the number of its end of a socket."""
        self.command, self.by_exec = command, by_exec
        self.selector: selectors.BaseSelector | None = None
        self.clock: Callable[[], float] | None = None
        self.socket: socket.socket | None = None
        self.process: SystemProcess | None = None
        self.is_ready = False
        self.warm_by = 0.0

    def open(self, selector: selectors.BaseSelector, clock: Callable[[], float]) -> None:
        if any(name in self.by_exec.environment(1) for name in PINNING):
            return
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [parent_word(), f"--requests-fd={theirs.fileno()}", ROOM]
        with theirs, suppress(OSError):
            by_exec = ExecStarter(self.command, self.by_exec.environment)
            self.process = by_exec.start(ProcessStart(words, 1, [theirs.fileno()], subprocess.DEVNULL))
        self.selector, self.clock = selector, clock
        self.warm_by = clock() + WARM_WITHIN
        selector.register(self.socket, selectors.EVENT_READ, self.hear)

    @property
    def is_warming(self) -> bool:
        """Return whether it is worth to wait until the server is ready."""
        return self.clock is not None and self.socket is not None and not self.is_ready and self.clock() < self.warm_by

    def hear(self) -> None:
        """Take the server's word that it is ready, or its end."""
        if self.receive(0.0) is None:
            self.close()
        else:
            self.is_ready = True

    def start(self, process_start: ProcessStart) -> SystemProcess:
        process = self.fork(process_start) if self.is_ready else None
        return process or self.by_exec.start(process_start)

    def fork(self, process_start: ProcessStart) -> GroupLeader | None:
        """Have the server fork a process; None if it is not one that computes, or the server fails, which is used no
        more then."""
        if process_start.threads is None or process_start.output is None or self.socket is None:
            return None
        request = {
            "command": list(self.by_exec.command),
            "words": list(process_start.words),
            "descriptors": [*process_start.inherited, 1, 2],
        }
        # A fork goes on once it reads a byte, so that none does whose answer came too late.
        gate, key = os.pipe()
        try:
            answer = self.ask(
                json.dumps(request).encode(),
                [gate, *process_start.inherited, process_start.output, process_start.output],
            )
            if answer is None:
                self.close()
                return None
            os.write(key, b"\1")
            return GroupLeader(int(answer))
        finally:
            os.close(gate)
            os.close(key)

    def ask(self, request: bytes, descriptors: Sequence[int]) -> bytes | None:
        """Adopt the process that the server forks for this request, and return its answer."""
        assert self.socket is not None
        with adopting(), suppress(OSError):
            socket.send_fds(self.socket, [request], descriptors)
            return self.receive(ANSWER_WITHIN)
        return None

    def receive(self, within: float) -> bytes | None:
        """Return the server's next message, or None if it has ended or says nothing in time."""
        assert self.socket is not None
        if not select.select([self.socket], [], [], within)[0]:
            return None
        with suppress(OSError):
            return self.socket.recv(LARGEST_ANSWER) or None
        return None

    def close(self) -> None:
        """End the server, not the processes that it forked."""
        self.is_ready = False
        if self.socket is not None and self.selector is not None:
            self.selector.unregister(self.socket)
            self.socket.close()
            self.socket = None
        if self.process is not None:
            self.process.reap()
            self.process = None


@contextmanager
def adopting() -> Iterator[None]:
    """Become meanwhile the parent of descendants whose own parent ends."""
    process_control(PR_SET_CHILD_SUBREAPER, 1)()
    try:
        yield
    finally:
        process_control(PR_SET_CHILD_SUBREAPER, 0)()
