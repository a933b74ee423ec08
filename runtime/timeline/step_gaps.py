# SPDX-License-Identifier: Apache-2.0
"""The times between a request's tokens, in bounded memory and at the cost of one append per token."""

from array import array
from itertools import pairwise

from pontil.runtime.timeline.timeline import Gaps

# Times that are kept as they came before they are settled, and entries of a series.
BUFFER, MOST_ENTRIES = 64, 512


class StepGaps:
    """The gaps of one request. Whoever takes tokens appends the time to `arrivals`, and calls `settle` once there are
    BUFFER of them.

    A series that is full halves its resolution: of each two entries it keeps the sum and the largest gap, so that a
    stall stays visible however long the answer is.
    """

    __slots__ = ("arrivals", "first", "largest", "last", "seconds", "steps", "width")

    def __init__(self) -> None:
        self.arrivals = array("d")
        self.first: float | None = None
        self.last = 0.0
        self.seconds, self.largest, self.steps = array("d"), array("d"), array("l")
        # Steps of an entry that is full.
        self.width = 1

    def note(self, now: float) -> None:
        """Note that a message with tokens came."""
        self.arrivals.append(now)
        if len(self.arrivals) >= BUFFER:
            self.settle()

    def settle(self) -> None:
        """Turn the times that were appended into gaps. Equal ones are of one message."""
        times = [self.last, *self.arrivals]
        if self.first is None and self.arrivals:
            self.first = times[0] = times[1]
        gaps = [later - earlier for earlier, later in pairwise(times) if later > earlier]
        self.last = times[-1]
        del self.arrivals[:]
        while gaps:
            gaps = self.add(gaps)

    def add(self, gaps: list[float]) -> list[float]:
        """Add the gaps that the last entry, or a new one, has room for; return the rest. While an entry is of one step,
        all that the series has room for are added at once."""
        if len(self.steps) == MOST_ENTRIES and self.steps[-1] == self.width:
            self.halve()
        if self.width == 1:
            count = MOST_ENTRIES - len(self.steps)
            new = gaps[:count]
            self.seconds.extend(new)
            self.largest.extend(new)
            self.steps.extend([1] * len(new))
            return gaps[count:]
        if self.steps[-1] == self.width:
            for series in (self.seconds, self.largest, self.steps):
                series.append(0)
        new = gaps[: self.width - self.steps[-1]]
        self.seconds[-1] += sum(new)
        self.largest[-1] = max(self.largest[-1], *new)
        self.steps[-1] += len(new)
        return gaps[len(new) :]

    def halve(self) -> None:
        self.width *= 2
        pairs = range(0, len(self.steps), 2)
        self.seconds = array("d", [sum(self.seconds[place : place + 2]) for place in pairs])
        self.largest = array("d", [max(self.largest[place : place + 2]) for place in pairs])
        self.steps = array("l", [sum(self.steps[place : place + 2]) for place in pairs])

    def shown(self, received: float) -> Gaps:
        """Return the gaps of a request that was received then."""
        self.settle()
        begin = 0.0 if self.first is None else max(0.0, self.first - received)
        return Gaps(begin, tuple(self.seconds), tuple(self.largest), tuple(self.steps))

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return 8 * (len(self.arrivals) + 3 * len(self.steps))
