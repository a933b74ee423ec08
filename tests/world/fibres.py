# SPDX-License-Identifier: Apache-2.0
"""Processes whose code waits in the middle of its work, as ranks do for each other: it runs in a thread of its own,
and exactly one thread of the world runs at a time."""

import threading
from collections.abc import Callable

from pontil.runtime.wire.simulated.processes import WorldProcess

# Seconds of a turn of a process's own loop besides its step.
TURN = 50e-6


class Fibre:
    """Work in a thread that runs only from `go_on` to its next `wait`, while the caller of `go_on` waits."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.error: BaseException | None = None
        # Held while the work, or the caller of `go_on`, must wait. Half the price of semaphores.
        self.batons = threading.Lock(), threading.Lock()
        for baton in self.batons:
            baton.acquire()
        # One whose process dies never goes on: the thread ends with the seed.
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        mine, theirs = self.batons
        mine.acquire()
        try:
            self.work()
        except BaseException as error:  # raised again where the work is waited for
            self.error = error
        theirs.release()

    def go_on(self) -> None:
        """Have the work go on until it waits or ends. Raises what it raises."""
        mine, theirs = self.batons
        mine.release()
        theirs.acquire()
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Have the caller of `go_on` go on; for the work itself."""
        mine, theirs = self.batons
        theirs.release()
        mine.acquire()


class FibreProcess(WorldProcess):
    """A process whose turns are the parts of one fibre, each from one wait to the next."""

    fibre: Fibre | None = None
    # When the present wait is over in any case.
    until: float | None = None

    def begin_fibre(self, work: Callable[[], None]) -> None:
        self.fibre = Fibre(work)
        self.notify()

    def turn(self) -> float | None:
        assert self.fibre is not None
        self.until = None
        self.fibre.go_on()
        return self.until

    def pause(self, until: float | None) -> None:
        """Wait until something comes, or until a time."""
        assert self.fibre is not None
        self.until = until
        self.fibre.wait()

    def wait_for(self, is_over: Callable[[], object], until: float | None) -> None:
        """Wait for something. Nothing is seen before the world's time is the process's own."""
        if self.ahead:
            self.pause(self.world.now())
        while not is_over() and (until is None or self.world.now() < until):
            self.pause(until)

    def poll(self, readable: Callable[[], object], milliseconds: int | None) -> None:
        """Wait as zmq's poll does, at the begin of a turn of the process's loop."""
        self.world.spend(TURN)
        now = self.world.now()
        self.wait_for(readable, None if milliseconds is None else now + milliseconds / 1000)
