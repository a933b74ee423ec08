# SPDX-License-Identifier: Apache-2.0
"""Times of a worker's part of a request, in readings of the worker's clock."""

from dataclasses import dataclass, field

# The most parts of one kind that are kept, and preemptions.
MOST_KEPT = 128


class PartTimes:
    """Times of parts of one kind: begin, end, and counts of each. Of too many, each two neighbours become one: from the
    first one's begin to the second one's end, with the sums of their counts."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []

    def add(self, begin: float, end: float, *counts: float) -> None:
        if len(self.rows) == MOST_KEPT:
            pairs = zip(self.rows[::2], self.rows[1::2], strict=True)
            self.rows = [
                (earlier[0], max(earlier[1], later[1]), *map(sum, zip(earlier[2:], later[2:], strict=True)))
                for earlier, later in pairs
            ]
        self.rows.append((begin, end, *counts))

    def since(self, start: float, until: float) -> list[float]:
        """Return all numbers, one part behind the other, with times from `start` on."""
        numbers: list[float] = []
        for begin, end, *counts in self.rows:
            numbers += [between(begin - start, until), between(end - start, until), *counts]
        return numbers


@dataclass(slots=True, eq=False)
class WorkTimes:
    """Times of one attempt on one worker. It was `scheduled`, its prompt computed in `chunks` (tokens), its KV fetched
    in `pulls` (blocks, bytes). A prompt that is handed over was `computed`, and `released` once the other worker
    had it, or was over with it. `first` and `last` are those of its tokens."""

    chunks: PartTimes = field(default_factory=PartTimes)
    pulls: PartTimes = field(default_factory=PartTimes)
    preempted: list[float] = field(default_factory=list)
    scheduled: float | None = None
    computed: float | None = None
    released: float | None = None
    first: float | None = None
    last: float | None = None

    def preempt(self, now: float) -> None:
        if len(self.preempted) < MOST_KEPT:
            self.preempted.append(now)

    def token(self, now: float) -> None:
        self.last = now
        if self.first is None:
            self.first = now


def between(seconds: float, most: float) -> float:
    """Return a time that is not before 0 and not after `most`."""
    return min(max(0.0, seconds), most)
