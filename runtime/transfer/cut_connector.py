# SPDX-License-Identifier: Apache-2.0
"""A connector whose link can be cut for a time, for trials of what a failing network costs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pontil.runtime.transfer.connector import Pair, PullResult, SliceConnector
from pontil.runtime.transfer.forwarding_connector import ForwardingConnector
from pontil.runtime.transfer.grants import Grant

CUT = "the link is cut (chaos)"


class CutConnector(ForwardingConnector):
    """A connector over another one. While it is cut, no pull succeeds: those under way end with an error, and so does
    each new one. The inner connector keeps its promise about a pull's blocks, since every pull is its own and is only
    cancelled. The cut ends by itself, so that nobody has to be alive to mend it."""

    def __init__(
        self, inner: SliceConnector, wake: Callable[[], None], clock: Callable[[], float] = lambda: time.monotonic()
    ) -> None:
        super().__init__(inner)
        self.wake, self.clock = wake, clock
        self.cut_until = float("-inf")
        # Tickets of pulls that have not ended, and those of them that the cut has broken.
        self.open: set[int] = set()
        self.broken: set[int] = set()

    @property
    def is_cut(self) -> bool:
        return self.clock() < self.cut_until

    def cut(self, seconds: float) -> None:
        """Cut the link for so many seconds from now, or mend it with 0."""
        self.cut_until = self.clock() + seconds
        if seconds > 0:
            for ticket in self.open - self.broken:
                self.break_pull(ticket)

    def break_pull(self, ticket: int) -> None:
        self.broken.add(ticket)
        self.cancel(ticket)
        self.wake()

    def pull(
        self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None, heads: range | None = None
    ) -> int:
        ticket = super().pull(peer, pairs, slot, shown, heads)
        self.open.add(ticket)
        if self.is_cut:
            self.break_pull(ticket)
        return ticket

    def poll(self) -> list[PullResult]:
        """Return the ends of pulls. One that was broken failed, even if its bytes came before it was cancelled."""
        ends = [self.failed(end) if end.ticket in self.broken else end for end in super().poll()]
        ended = {end.ticket for end in ends}
        self.open -= ended
        self.broken -= ended
        return ends

    def failed(self, end: PullResult) -> PullResult:
        return replace(end, error=CUT, epoch=None, bytes=0, digests=[])
