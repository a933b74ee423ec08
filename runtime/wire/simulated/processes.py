# SPDX-License-Identifier: Apache-2.0
"""Processes of the world, which its supervisor takes for the system's: each takes turns, and can be killed, stopped and
resumed between any two events, also in the middle of a turn: what a turn does later than that does not happen, or
happens after the resumption."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pontil.runtime.wire.simulated.virtual_time import VirtualWorld

# No process outside has such a pid.
FIRST_PID = 1 << 23
# Exit code after an error that a process reports.
FAILED = 1


class WorldProcess(ABC):
    """One process. `ahead` is how far its clock has run ahead in the present turn; `ends` the time of its death, with
    the exit `code`."""

    def __init__(self, world: VirtualWorld, name: str) -> None:
        self.world, self.name = world, name
        world.processes.append(self)
        self.pid = FIRST_PID + len(world.processes)
        self.ahead = self.busy_until = 0.0
        self.ends: float | None = None
        self.code = 0
        # True if it ended with its host.
        self.vanished = False
        self.stopped_at: float | None = None
        self.due: float | None = None
        self.ticket = self.turns = 0
        # Its sockets (wire_sockets.py), that of its authenticator, and its threads (thread_events.py).
        self.sockets: list[Any] = []
        self.zap: Any = None
        self.threads: list[Any] = []
        self.descriptors: set[int] = set()
        # Called when it goes on after a stop, oldest first, and when it has died.
        self.held: list[Callable[[], object]] = []
        self.at_death: list[Callable[[], object]] = []

    @property
    def alive(self) -> bool:
        return self.ends is None

    def __repr__(self) -> str:
        return f"{self.name}/{self.pid}"

    @abstractmethod
    def turn(self) -> float | None:
        """Take one turn. Return when the next one is due; None: when something comes."""

    def poll(self, readable: Callable[[], object], milliseconds: int | None) -> None:
        """Wait as zmq's poll does; a process that returns from each turn has waited before it."""
        return

    def notify(self) -> None:
        """Have it take a turn as soon as it can."""
        now = self.world.now()
        when = now if now > self.busy_until else self.busy_until
        # As `wake_at` begins: a process that is awake already is told of most messages.
        if self.due is None or when < self.due:
            self.wake_at(when)

    def wake_at(self, when: float) -> None:
        if self.ends is None and (self.due is None or when < self.due):
            self.due = when
            self.ticket += 1
            self.world.at(when, self.fire, self.ticket)

    def fire(self, ticket: int) -> None:
        if ticket != self.ticket or self.ends is not None or self.due is None:
            return
        self.due = None
        if self.stopped_at is not None:
            self.held.append(self.notify)
            return
        self.turns += 1
        # As `inside`, which costs a good part of a turn.
        world, before = self.world, self.world.current
        world.current, ahead = self, self.busy_until - world.time
        self.ahead = ahead if ahead > 0.0 else 0.0
        try:
            after = self.turn()
        finally:
            self.busy_until = world.time + self.ahead
            world.current, self.ahead = before, 0.0
        if after is not None:
            self.wake_at(after if after > self.busy_until else self.busy_until)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run as this process."""
        world, before = self.world, self.world.current
        world.current, self.ahead = self, max(0.0, self.busy_until - world.time)
        try:
            yield
        finally:
            self.busy_until = world.time + self.ahead
            world.current, self.ahead = before, 0.0

    def job(self, when: float, work: Callable[[], object]) -> None:
        """Have a helper thread of this process do something at a time, if it lives and is not stopped by then."""

        self.world.at(when, self.begin_job, work)

    def begin_job(self, work: Callable[[], object]) -> None:
        if self.ends is not None:
            return
        if self.stopped_at is not None:
            self.held.append(partial(self.begin_job, work))
            return
        # Its turns take no longer for it.
        before, self.world.current, self.ahead = self.world.current, self, 0.0
        try:
            work()
        finally:
            self.world.current, self.ahead = before, 0.0

    def acts(self, when: float, work: Callable[[], object]) -> None:
        """Do at a time what a turn of this process has just done for that time: not if it dies before, and later if it
        is stopped before."""
        if when <= self.world.time:
            self.act(when, work)
        else:
            self.world.at(when, self.act, when, work)

    def act(self, when: float, work: Callable[[], object]) -> None:
        if self.ends is not None and (self.ends < when or self.stopped_at is not None and self.stopped_at < when):
            return
        if self.stopped_at is not None and self.stopped_at < when:
            self.held.append(partial(self.act, when, work))
        else:
            work()

    def kill(self, code: int = -signal.SIGKILL) -> None:
        """End it, by itself or by a signal."""
        if self.ends is not None:
            return
        self.world.note("kill", self)
        self.ends, self.code = self.world.time, code
        for socket in list(self.sockets):
            socket.die()
        for work in self.at_death:
            work()
        self.leave_all()

    def vanish(self) -> None:
        """End with its host: nobody is told, and its connections are only silent."""
        if self.ends is not None:
            return
        self.world.note("vanish", self)
        self.vanished = True
        self.ends, self.code = self.world.time, -signal.SIGKILL
        self.world.network.vanish(self)
        for work in self.at_death:
            work()
        self.leave_all()

    def leave_all(self) -> None:
        for descriptor in sorted(self.descriptors):
            os.close(descriptor)
        # Nothing of this happens any more.
        self.let_go()

    # The parts that its supervisor calls (SystemProcess).

    def signal(self, number: signal.Signals) -> None:
        """Kill it: at once by SIGKILL, and by another signal when it runs."""
        if number == signal.SIGKILL or self.stopped_at is None:
            self.kill(-number)
        else:
            self.held.append(lambda: self.kill(-number))

    def has_ended(self) -> bool:
        return not self.alive

    def reap(self) -> int:
        return self.code

    def look(self, now: float) -> Any:
        """Return no sample: what does not send heartbeats does not compute either."""
        return None

    # The parts of faults.

    def stop(self) -> None:
        if self.alive and self.stopped_at is None:
            self.world.note("stop", self)
            self.stopped_at = self.world.time

    def resume(self) -> None:
        if self.stopped_at is None or not self.alive:
            return
        self.world.note("resume", self)
        self.busy_until = max(self.busy_until, self.world.time) + max(0.0, self.busy_until - self.stopped_at)
        self.stopped_at = None
        self.let_go()

    def let_go(self) -> None:
        held, self.held = self.held, []
        for work in held:
            work()
