# SPDX-License-Identifier: Apache-2.0
"""A worker's part of an attempt, checked and placed in the proxy's time."""

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pontil.runtime.errors import MalformedFrame
from pontil.runtime.timeline.timeline import (
    BEGIN,
    COMPUTE,
    DECODE,
    HANDOFF,
    PREEMPTED,
    PULL,
    QUEUE,
    TimeEvent,
    TimeSpan,
)
from pontil.runtime.wire.messages import AttemptTimes

# The most chunks, pulls and preemptions that a worker tells of, each.
MOST_PARTS = 128
CHUNK, PULLED = 3, 4
# Larger counts are no counts, and longer ages none.
MOST_COUNTED, MOST_SECONDS = 1 << 48, 1e9


@dataclass(frozen=True, slots=True)
class TimePlace:
    """The place of a worker's times in a request's: its clock began at `receipt`, and nothing of it is outside
    `earliest` and `latest`. The times are since the request was received."""

    receipt: float
    earliest: float
    latest: float

    def at(self, seconds: float) -> float:
        return min(max(self.receipt + seconds, self.earliest), self.latest)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's times, in seconds since its Submit arrived at it at `receipt`, a reading of the proxy's clock."""

    process: str
    attempt: int
    receipt: float
    age: float
    scheduled: float | None
    chunks: "array[float]"
    pulls: "array[float]"
    handoff: tuple[float, float] | None
    preempted: "array[float]"
    tokens: tuple[float, float] | None

    @classmethod
    def of(cls, message: AttemptTimes, process: str, sent: float, now: float) -> "WorkerReport":
        """Return the report in a message that arrived `now`; its attempt was sent to the worker at `sent`. The worker's
        clock says only how long ago things were, so another host's may be wrong. Raises MalformedFrame for times that
        are none."""
        age = message.age
        if not 0.0 <= age <= MOST_SECONDS:
            raise MalformedFrame("the age of a worker's times is none")
        check_parts(message.chunks, CHUNK, age)
        check_parts(message.pulls, PULLED, age)
        if len(message.preempted) > MOST_PARTS or len(message.handoff) > 2:
            raise MalformedFrame("a worker's times are too many")
        single = [message.scheduled, message.first_token, message.last_token, *message.preempted, *message.handoff]
        if any(moment is not None and not 0.0 <= moment <= age for moment in single):
            raise MalformedFrame("a worker's times are outside of its part")
        return cls(
            process, message.attempt, max(sent, now - age), age, message.scheduled, array("d", message.chunks),
            array("d", message.pulls), pair(message.handoff), array("d", sorted(message.preempted)),
            pair([moment for moment in (message.first_token, message.last_token) if moment is not None]),
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return 256 + 8 * (len(self.chunks) + len(self.pulls) + len(self.preempted))

    def spans(self, place: TimePlace) -> Iterator[TimeSpan]:
        def span(name: str, begin: float, end: float, **counts: int) -> TimeSpan:
            return TimeSpan(name, self.process, place.at(begin), place.at(end), self.attempt, **counts)

        start_times = [self.scheduled, *self.chunks[:1], *(self.tokens or ())[:1]]
        yield span(QUEUE, 0.0, next((start_time for start_time in start_times if start_time is not None), self.age))
        for begin, end, tokens in tuples(self.chunks, CHUNK):
            yield span(COMPUTE, begin, end, tokens=int(tokens))
        for begin, end, blocks, size in tuples(self.pulls, PULLED):
            yield span(PULL, begin, end, blocks=int(blocks), bytes=int(size))
        if self.handoff is not None:
            yield span(HANDOFF, *self.handoff)
        if self.tokens is not None and self.tokens[0] < self.tokens[1]:
            yield span(DECODE, *self.tokens)

    def events(self, place: TimePlace) -> Iterator[TimeEvent]:
        if self.scheduled is not None:
            yield TimeEvent(BEGIN, self.process, place.at(self.scheduled), self.attempt)
        for at in self.preempted:
            yield TimeEvent(PREEMPTED, self.process, place.at(at), self.attempt)


def check_parts(numbers: Sequence[float], width: int, age: float) -> None:
    """Check parts of so many numbers each: begin, end, and counts. Raises MalformedFrame."""
    if len(numbers) % width or len(numbers) > width * MOST_PARTS:
        raise MalformedFrame("a worker's parts are not whole, or too many")
    for begin, end, *counts in tuples(numbers, width):
        if not 0.0 <= begin <= end <= age or not all(0 <= count <= MOST_COUNTED for count in counts):
            raise MalformedFrame("a part of a worker's is outside of its times")


def tuples(numbers: Sequence[float], width: int) -> Iterator[Sequence[float]]:
    return (numbers[place : place + width] for place in range(0, len(numbers), width))


def pair(numbers: Sequence[float]) -> tuple[float, float] | None:
    """Return two times as they are. Raises MalformedFrame for another number of them, or a wrong order; none is
    None."""
    if not numbers:
        return None
    if len(numbers) != 2 or numbers[0] > numbers[1] or not all(map(math.isfinite, numbers)):
        raise MalformedFrame("a worker's times do not come in order")
    return float(numbers[0]), float(numbers[1])
