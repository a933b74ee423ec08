# SPDX-License-Identifier: Apache-2.0
"""Virtual time: a heap of events, a clock that jumps from one to the next, randomness by purpose, and a hash of all
that happened.

Nothing here waits. While a process computes, its own clock runs ahead of the world's by what it `spend`s, and only its
own: others may act in the middle of its step.
"""

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

# Seconds since 1970 when the clock showed 0, and what it shows at the beginning.
EPOCH, BEGIN = 1_700_000_000.0, 10_000.0
# Events that a violation shows.
SHOWN = 30


class TraceWriter(Protocol):
    """Takes the lines of a trace."""

    def write(self, line: str, /) -> object: ...


class ProcessDied(SystemExit):
    """The end of the process that runs, in the middle of a call: nothing that it would have done next happens."""


class VirtualWorld:
    """All that happens from one seed. `current` is the process that runs now, if one does (processes.py), `network` has
    the links between processes (network.py). `wakeups` are the counts behind event descriptors, `wakers` the processes
    that read them."""

    network: Any

    def __init__(self, seed: int, trace: TraceWriter | None = None) -> None:
        self.seed, self.trace = seed, trace
        self.time = BEGIN
        # By time and number: what happens then, with what it is given.
        self.heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.number = self.steps = self.events = 0
        self.current: Any = None
        self.processes: list[Any] = []
        self.wakeups: dict[int, int] = {}
        self.wakers: dict[int, Any] = {}
        # The pipes of which their processes have been told that something came.
        self.readable: set[int] = set()
        self.by_purpose: dict[str, random.Random] = {}
        self.hash = hashlib.sha256()
        self.last: deque[str] = deque(maxlen=SHOWN)
        # Exceptions that threads and tasks of the product survived.
        self.failures: list[str] = []

    def random(self, purpose: str) -> random.Random:
        """Return the randomness for one purpose: more draws for one do not change those for another."""
        if purpose not in self.by_purpose:
            self.by_purpose[purpose] = random.Random(f"{self.seed}/{purpose}")
        return self.by_purpose[purpose]

    def now(self) -> float:
        current = self.current
        return self.time if current is None else self.time + current.ahead

    def of_the_day(self) -> float:
        """Return what the clock of the day shows to the process that runs."""
        return EPOCH + self.now()

    def at(self, when: float, work: Callable[..., object], *given: Any) -> None:
        """Call `work` at a time, after everything that is due by then."""
        self.number += 1
        heapq.heappush(self.heap, (when, self.number, work, given))

    def after(self, seconds: float, work: Callable[..., object], *given: Any) -> None:
        self.at(self.now() + seconds, work, *given)

    def spend(self, seconds: float) -> None:
        """Have the process that runs compute for so long."""
        if self.current is not None:
            self.current.ahead += seconds

    def note(self, *what: object) -> None:
        """Add a line to the trace. Values must be the same in every run of a seed."""
        self.events += 1
        line = f"{self.now():.9f} {' '.join(map(str, what))}"
        self.hash.update(line.encode())
        self.last.append(line)
        if self.trace is not None:
            self.trace.write(f"{line}\n")

    def note_message(self, sender: str, target: str, parts: Sequence[bytes]) -> None:
        self.note("msg", sender, target, hashlib.blake2b(b"\0".join(parts), digest_size=6).hexdigest())

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let events happen until it is over, or nothing is left to happen."""
        heap, pop = self.heap, heapq.heappop
        while heap and not is_over():
            when, _, work, given = pop(heap)
            if when > self.time:
                self.time = when
            self.steps += 1
            try:
                work(*given)
            except ProcessDied:
                continue

    def run_until(self, time: float) -> None:
        self.at(time, lambda: None)
        self.run(lambda: self.time >= time)


class Here:
    """The one world of this process, which stand-ins for modules refer to: a process that has a world can do nothing
    else (docs/decisions/122-a-process-may-have-a-virtual-world.md)."""

    world: VirtualWorld

    def enter(self, world: VirtualWorld) -> None:
        self.world = world


HERE = Here()
