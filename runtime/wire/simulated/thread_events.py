# SPDX-License-Identifier: Apache-2.0
"""Threads of the product as events of the process that starts them, so that a stop or a death holds them too."""

from functools import partial
from typing import Any

from pontil.runtime.threads import FIRST_PAUSE, TurnThread
from pontil.runtime.wire.simulated.processes import WorldProcess
from pontil.runtime.wire.simulated.virtual_time import HERE

# Seconds from the wake of a thread to its turn, which is one moment: what reads much of a disk, or
# writes to it, takes longer.
USUAL_SECONDS = 50e-6
SECONDS = {"usage-log": 2e-3, "adapters": 0.1}


class ThreadEvents:
    """The turns of one thread. `number` is that of the event that is due."""

    def __init__(self, thread: TurnThread, process: WorldProcess) -> None:
        self.thread, self.process = thread, process
        self.seconds = SECONDS.get(thread.thread.name, USUAL_SECONDS)
        self.name = thread.thread.name
        self.due: float | None = None
        self.number = 0
        process.threads.append(self)

    def turn_after(self, pause: float) -> None:
        """Take a turn after so many seconds, if none is due before."""
        when = self.process.world.now() + max(pause, self.seconds)
        if self.due is None or when < self.due:
            self.due = when
            self.number += 1
            self.process.job(when, partial(self.happen, self.number))

    def happen(self, number: int) -> None:
        if number == self.number:
            self.due = None
            pause = self.turn()
            if pause is not None:
                self.turn_after(pause)

    def turn(self) -> float | None:
        """Do what one round of the real thread does."""
        pauses = list[float | None]()
        real = self.thread.thread
        error = real.failures.contain(real.name, lambda: pauses.append(self.thread.turn()))
        if error is None:
            return pauses[0]
        if real.mend is not None:
            real.failures.contain(real.name, real.mend, error)
        return FIRST_PAUSE


def start(thread: Any) -> None:
    assert HERE.world.current is not None, "threads belong to a process"
    thread.events = ThreadEvents(thread, HERE.world.current)
    wake(thread)


def wake(thread: Any) -> None:
    if is_started(thread):
        thread.events.turn_after(0.0)


def close(thread: Any, within: float = 0.0) -> bool:
    thread.closing.set()
    if is_started(thread):
        while thread.events.turn() is not None:
            pass
        thread.end()
    return True


def is_started(thread: Any) -> bool:
    return hasattr(thread, "events")


def use_events_for_threads() -> None:
    untyped: Any = TurnThread
    untyped.start, untyped.wake, untyped.close, untyped.started = start, wake, close, property(is_started)
