# SPDX-License-Identifier: Apache-2.0
"""Measured service rates of the workers: prompt tokens computed a second, and the time that an answer keeps a seat.
Requests wait for the slower of the two."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Protocol, TypeVar

# Time constant of the measurement, in seconds of computing: load changes the cost of prompts within a few seconds.
MEMORY_SECONDS = 5.0
# Less computing time than this gives no measurement yet.
LEAST_SECONDS = 0.02
# The weight of each answer that ends in the running means.
LEARNING = 0.1


@dataclass(slots=True)
class PromptRate:
    """The prompt tokens computed for each second in which a worker had any to compute.

    Both sums decay with that time only, so that idle time does not erase the measured rate.
    """

    computed: float = 0.0
    busy: float = 0.0
    at: float | None = None
    computing: bool = False

    def pass_time(self, now: float, computing: bool) -> None:
        """Advance the clock. `computing`: a worker had prompts to compute since the last call."""
        before, self.at, self.computing = self.at, now, computing
        if before is None or not computing or now <= before:
            return
        decay = exp((before - now) / MEMORY_SECONDS)
        self.computed *= decay
        self.busy = self.busy * decay + (now - before)

    def add(self, tokens: int) -> None:
        """Add the tokens computed in the time that has just passed."""
        if self.computing:
            self.computed += tokens

    @property
    def per_second(self) -> float | None:
        """The rate, or None while nothing was measured."""
        return self.computed / self.busy if self.computed and self.busy >= LEAST_SECONDS else None


@dataclass(slots=True)
class RunningMean:
    """An exponential mean of recent values; None before the first."""

    value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + LEARNING * (value - self.value)


class HasSeats(Protocol):
    """A worker, or its load. `taken` counts the choices dispatched to it that have not ended."""

    @property
    def role(self) -> str: ...

    @property
    def seats(self) -> int: ...

    @property
    def taken(self) -> int: ...


W = TypeVar("W", bound=HasSeats)


@dataclass(frozen=True, slots=True)
class Seats:
    """The seats of the workers that generate. Without a `free` one a request waits for an answer to end."""

    free: int
    total: int

    @classmethod
    def of(cls, workers: Sequence[HasSeats]) -> "Seats":
        seat_workers = generating(workers)
        free = sum([max(0, worker.seats - worker.taken) for worker in seat_workers])
        return cls(free, sum([worker.seats for worker in seat_workers]))


def generating(workers: Sequence[W]) -> Sequence[W]:
    """Return the workers that generate: those that do not only compute prompts, or all where there are no pairs."""
    roles = [worker.role for worker in workers]
    if "decode" not in roles or "prefill" not in roles:
        return workers
    return [worker for role, worker in zip(roles, workers, strict=True) if role != "prefill"]


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    """Prompt tokens a second, seats, and the seconds for which an answer keeps a seat."""

    rate: float
    seats: Seats
    stay: float

    def after(self, tokens: float, choices: float) -> float:
        """Return the seconds until the turn of a request behind so many prompt tokens and choices."""
        return max(tokens / self.rate, self.for_seat(choices))

    def for_seat(self, choices: float) -> float:
        """Return the seconds until so many choices have got a seat. By Little's law answers end as fast as seats / time
        in a seat."""
        if choices < self.seats.free or not self.seats.total:
            return 0.0
        return (choices - self.seats.free + 1.0) * self.stay / self.seats.total


class ServiceRate:
    """The measured rates of all workers. `seats` returns the current seats. Times are in seconds."""

    def __init__(self, seats: Callable[[], Seats]) -> None:
        self.seats = seats
        self.prompts = PromptRate()
        self.stay = RunningMean()
        self.output = RunningMean()
        # The choices that were answered since the start.
        self.answers = 0
        # The requests that are with workers: their number, and the sum of the times at which they were sent.
        self.running = 0
        self.sent = self.now = 0.0

    def pass_time(self, now: float, uncomputed: int) -> None:
        """Advance the clock; `uncomputed` prompt tokens were with the workers since the last call. While every seat is
        taken they may be waiting for one, so that time says nothing about the computing rate."""
        self.prompts.pass_time(now, bool(uncomputed) and self.seats().free > 0)
        self.now = now

    def begun(self, now: float) -> None:
        """Count a request that was sent to workers."""
        self.running += 1
        self.sent += now

    def ended(self, sent: float) -> None:
        """Remove a request that was sent at this time."""
        self.running -= 1
        self.sent = self.sent - sent if self.running else 0.0

    def answered(self, stay: float, output: float, choices: int = 1) -> None:
        """Learn from an answer of so many tokens for each of its choices, that long after it was sent."""
        self.stay.add(stay)
        self.output.add(output)
        self.answers += choices

    @property
    def longest_stay(self) -> float:
        """Return how long an answer keeps its seat: the mean of those that ended, or the mean age of the running ones
        if longer."""
        age = self.now - self.sent / self.running if self.running else 0.0
        return max(self.stay.value or 0.0, age)

    @property
    def now_wait(self) -> "WaitEstimate | None":
        """Return the current estimate of waits; None while nothing is measured."""
        rate = self.prompts.per_second
        return None if rate is None else WaitEstimate(rate, self.seats(), self.longest_stay)
