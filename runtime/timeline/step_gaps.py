# SPDX-License-Identifier: Apache-2.0
"""The times between a request's tokens, in bounded memory and at the cost of one append per token."""

from array import array

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
        for at in self.arrivals:
            if self.first is None:
                self.first = self.last = at
            elif at > self.last:
                self.add(at - self.last)
                self.last = at
        del self.arrivals[:]

    def add(self, gap: float) -> None:
        if self.steps and self.steps[-1] < self.width:
            self.seconds[-1] += gap
            self.largest[-1] = max(self.largest[-1], gap)
            self.steps[-1] += 1
            return
        if len(self.steps) == MOST_ENTRIES:
            self.halve()
        self.seconds.append(gap)
        self.largest.append(gap)
        self.steps.append(1)

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
