# SPDX-License-Identifier: Apache-2.0
"""A connector whose link can be cut for a time, for trials of what a failing network costs."""

import time
from collections.abc import Callable
from typing import Any

from pontil.runtime.transfer.connector import Pull, PullResult, SliceConnector

CUT = "the link is cut (chaos)"


class ForwardingConnector:
    """A connector that hands everything to an `inner` one: the base of those that change a part of it."""

    def __init__(self, inner: SliceConnector) -> None:
        self.inner = inner

    def register(self) -> dict[str, Any]:
        return self.inner.register()

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        self.inner.attach(peer, descriptor, heads)

    def detach(self, peer: str) -> None:
        self.inner.detach(peer)

    def staged(self, peer: str) -> bool:
        return self.inner.staged(peer)

    def lost(self) -> list[str]:
        return self.inner.lost()

    def pull(self, pull: Pull) -> None:
        self.inner.pull(pull)

    def poll(self) -> list[Pull]:
        return self.inner.poll()

    def close(self) -> None:
        self.inner.close()


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
        # The pulls that have not ended, and those of them that the cut has broken.
        self.open: list[Pull] = []
        self.broken: set[Pull] = set()

    @property
    def is_cut(self) -> bool:
        return self.clock() < self.cut_until

    def cut(self, seconds: float) -> None:
        """Cut the link for so many seconds from now, or mend it with 0."""
        self.cut_until = self.clock() + seconds
        if seconds > 0:
            for pull in self.open:
                self.break_pull(pull)

    def break_pull(self, pull: Pull) -> None:
        if pull not in self.broken:
            self.broken.add(pull)
            pull.cancel()
            self.wake()

    def pull(self, pull: Pull) -> None:
        super().pull(pull)
        self.open.append(pull)
        if self.is_cut:
            self.break_pull(pull)

    def poll(self) -> list[Pull]:
        """Return the pulls that ended. One that was broken failed, even if its bytes came before it was cancelled."""
        pulls = super().poll()
        for pull in pulls:
            if pull in self.broken:
                self.broken.remove(pull)
                pull.result = PullResult(CUT)
        self.open = [pull for pull in self.open if pull not in pulls]
        return pulls
