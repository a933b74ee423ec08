# SPDX-License-Identifier: Apache-2.0
"""The recorder of one request's timeline, and the part that took most of its time."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pontil.runtime.timeline.received import ReceivedRequest
from pontil.runtime.timeline.step_gaps import StepGaps
from pontil.runtime.timeline.timeline import (
    ATTEMPT,
    COMPUTE,
    DECODE,
    FAILOVER,
    FINISHED,
    FIRST_TOKEN,
    HANDOFF,
    PROXY,
    PULL,
    QUEUE,
    RECEIVE,
    TOKENIZE,
    WRITE,
    LargestPart,
    TimeEvent,
    Timeline,
    TimelineRow,
    TimeSpan,
)
from pontil.runtime.timeline.worker_report import TimePlace, WorkerReport
from pontil.runtime.wire.messages import AttemptTimes

# Attempts that are kept: the first ones, and the last.
MOST_ATTEMPTS = 16
LONGEST_REASON = 300
# Requests of one HTTP request that are kept: many texts to embed would push all others out.
MOST_OF_ONE = 16
# Bytes of a recorder with one attempt, about.
OWN_SIZE = 2048
# The parts in the order in which they hide each other.
HIDING = (COMPUTE, PULL, HANDOFF, DECODE, QUEUE, TOKENIZE, RECEIVE, WRITE, ATTEMPT)
RANKS = {name: rank for rank, name in enumerate(HIDING)}


def largest_part(spans: Sequence[TimeSpan], seconds: float) -> LargestPart | None:
    """Return the part with the largest share of the time until `seconds`; None if there is none.

    Spans overlap, so the sum of a part's spans says little: a pull that is hidden behind the computation of the next
    chunk costs the client nothing. Each moment is therefore counted once, for the part that stands first in HIDING of
    those that are going on. A pull counts where nothing was computed, a handoff where nothing was pulled either, and an
    attempt only where no worker stated a part of it: messages on their way, or workers that send no times. Spans of one
    name in one process are one part.
    """
    edges: list[tuple[float, int, tuple[int, str, str]]] = []
    for span in spans:
        end = min(seconds, seconds if span.end is None else span.end)
        if span.begin < end:
            key = (RANKS.get(span.name, len(RANKS)), span.name, span.process)
            edges += [(span.begin, 1, key), (end, -1, key)]
    edges.sort()
    shares: dict[tuple[int, str, str], float] = {}
    active: dict[tuple[int, str, str], int] = {}
    before = 0.0
    for at, change, key in edges:
        if active and at > before:
            first = min(active)
            shares[first] = shares.get(first, 0.0) + at - before
        before = at
        count = active.get(key, 0) + change
        if count:
            active[key] = count
        else:
            del active[key]
    if not shares:
        return None
    _, name, process = largest = max(shares, key=lambda key: shares[key])
    return LargestPart(name if process == PROXY else f"{name} of {process}", shares[largest])


@dataclass(slots=True)
class AttemptRecord:
    """One attempt: its workers' names by incarnation, and what they reported. Before it, the request waited from
    `waited`. `reason` is why it broke."""

    number: int
    waited: float
    begun: float
    workers: Mapping[str, str]
    ended: float | None = None
    reason: str | None = None
    reports: dict[str, WorkerReport] = field(default_factory=dict)


class RequestRecorder:
    """Records one request, in readings of the proxy's clock. `gaps` takes the times of tokens. The HTTP request that it
    is for goes on to be noted in `received`, if there is one. `row` returns the request's line while it is open;
    `admitted_at` is in seconds since 1970. A hidden one is a
    self-test, or one of very many of one HTTP request: it is neither shown nor kept."""

    __slots__ = ("admitted_at", "attempts", "ended", "gaps", "is_hidden", "received", "row", "since", "waits")

    def __init__(self) -> None:
        self.gaps = StepGaps()
        self.attempts: list[AttemptRecord] = []
        self.received: ReceivedRequest | None = None
        self.is_hidden = False
        self.ended: float | None = None
        self.since = self.waits = self.admitted_at = 0.0
        self.row: Callable[[float], TimelineRow] | None = None

    def admit(self, now: float, received: ReceivedRequest | None, row: Callable[[float], TimelineRow]) -> None:
        """Begin to record a request that waits for its first attempt."""
        self.received, self.row, self.waits, self.admitted_at = received, row, now, time.time()
        self.since = now if received is None else min(received.at, now)
        if received is not None:
            received.requests += 1
            self.is_hidden = received.requests > MOST_OF_ONE

    def begin(self, number: int, workers: Mapping[str, str], now: float) -> None:
        """Record an attempt by workers of these names, by incarnation."""
        if len(self.attempts) == MOST_ATTEMPTS:
            del self.attempts[MOST_ATTEMPTS // 2]
        self.attempts.append(AttemptRecord(number, self.waits, now, workers))

    def broke(self, now: float, reason: str | None = None) -> None:
        """Record that the attempt broke. A reason that is given first stays."""
        self.waits = now
        if self.attempts and self.attempts[-1].ended is None:
            self.attempts[-1].ended = now
        if self.attempts and reason is not None and self.attempts[-1].reason is None:
            self.attempts[-1].reason = reason[:LONGEST_REASON]

    def end(self, row: TimelineRow, now: float) -> None:
        """Record the end. From now on nothing is kept of the request but its line."""
        self.gaps.settle()
        self.broke(now)
        self.ended = now
        self.row = lambda at: row

    def take(self, message: AttemptTimes, now: float) -> bool:
        """Take a worker's report; return whether it is one that was to come. Raises MalformedFrame."""
        attempt = next((attempt for attempt in self.attempts if attempt.number == message.attempt), None)
        if attempt is None or message.sender not in attempt.workers or message.sender in attempt.reports:
            return False
        name = attempt.workers[message.sender]
        attempt.reports[message.sender] = WorkerReport.of(message, name, attempt.begun, now)
        return True

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        reports = sum(report.size for attempt in self.attempts for report in attempt.reports.values())
        return OWN_SIZE + 512 * len(self.attempts) + self.gaps.size + reports

    @property
    def is_whole(self) -> bool:
        """True if every worker of every attempt has reported."""
        return all(len(attempt.reports) == len(attempt.workers) for attempt in self.attempts)

    def line(self, now: float) -> TimelineRow:
        assert self.row is not None, "a request is admitted before it is shown"
        row = self.row(now)
        return row if self.ended is not None else replace(row, seconds=max(0.0, now - self.since))

    def timeline(self, now: float) -> Timeline:
        """Return the timeline so far."""
        row, gaps = self.line(now), self.gaps.shown(self.since)
        spans = sorted(self.spans(now), key=lambda span: span.begin)
        events = sorted(self.events(now), key=lambda event: event.at)
        return Timeline(row, tuple(spans), tuple(events), gaps, largest_part(spans, row.seconds))

    def spans(self, now: float) -> Iterator[TimeSpan]:
        if self.received is not None:
            for name, (begin, end) in self.received.parts.items():
                yield TimeSpan(name, PROXY, self.relative(begin), max(self.relative(begin), self.relative(end)))
        for attempt in self.attempts:
            if attempt.begun > attempt.waited or not attempt.number:
                yield TimeSpan(
                    QUEUE, PROXY, self.relative(attempt.waited), self.relative(attempt.begun), attempt.number
                )
            attempt_end = None if attempt.ended is None else self.relative(attempt.ended)
            yield TimeSpan(ATTEMPT, PROXY, self.relative(attempt.begun), attempt_end, attempt.number)
            for report in attempt.reports.values():
                yield from report.spans(self.place(attempt, report, now))
        if self.ended is None and (not self.attempts or self.attempts[-1].ended is not None):
            yield TimeSpan(QUEUE, PROXY, self.relative(self.waits), None)
        elif self.ended is not None and not self.attempts:
            yield TimeSpan(QUEUE, PROXY, self.relative(self.waits), self.relative(self.ended))

    def events(self, now: float) -> Iterator[TimeEvent]:
        for attempt in self.attempts:
            for report in attempt.reports.values():
                yield from report.events(self.place(attempt, report, now))
            if attempt.reason is not None and attempt.ended is not None:
                yield TimeEvent(FAILOVER, PROXY, self.relative(attempt.ended), attempt.number, attempt.reason)
        if self.gaps.first is not None:
            yield TimeEvent(FIRST_TOKEN, PROXY, self.relative(self.gaps.first))
        if self.ended is not None:
            yield TimeEvent(FINISHED, PROXY, self.relative(self.ended))

    def place(self, attempt: AttemptRecord, report: WorkerReport, now: float) -> TimePlace:
        """Return where a report's times belong: within its attempt."""
        earliest = self.relative(attempt.begun)
        latest = max(earliest, self.relative(now if attempt.ended is None else attempt.ended))
        return TimePlace(self.relative(report.receipt), earliest, latest)

    def relative(self, at: float) -> float:
        return max(0.0, at - self.since)
