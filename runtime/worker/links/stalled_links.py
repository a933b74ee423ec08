# SPDX-License-Identifier: Apache-2.0
"""Links of a worker that stand still for a time, for trials of what a network that goes quiet costs."""

import time
from collections.abc import Callable, Iterable

from pontil.runtime.wire.links.sockets import BaseSocket, Poller


class StalledLinks:
    """The sockets of a worker: those that it always has, and those to its peers of the moment. While they are stalled
    nothing is read from them and nothing is sent, and no connection ends: what comes waits, and so does what is to go.
    The stall ends by itself, so that nobody has to be alive to end it. The worker calls `tick` at least twice a
    second."""

    def __init__(
        self,
        poller: Poller,
        own: Iterable[BaseSocket],
        peers: Callable[[], Iterable[BaseSocket]],
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self.poller, self.own, self.peers, self.clock = poller, tuple(own), peers, clock
        self.held: list[BaseSocket] = []
        self.until = float("-inf")

    def stall(self, seconds: float) -> None:
        """Stall the links for so many seconds from now, or end that with 0."""
        self.until = self.clock() + seconds
        if seconds > 0 and not self.held:
            self.held = [*self.own, *self.peers()]
            for socket in self.held:
                socket.is_stalled = True
                # One that has something to read would keep the worker awake.
                self.poller.unregister(socket)
        self.tick(self.clock())

    def tick(self, now: float) -> None:
        if self.held and now >= self.until:
            for socket in self.held:
                socket.is_stalled = False
                if not socket.zmq_socket.closed:
                    self.poller.register(socket)
            self.held = []
