# SPDX-License-Identifier: Apache-2.0
"""The HTTP side of requests' timelines: one HTTP request, which may become several requests."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class ReceivedRequest:
    """An HTTP request from its head on, in seconds of `clock`. A part that comes again goes on with the first one."""

    __slots__ = ("at", "clock", "parts", "requests", "route", "since_epoch", "trace")

    def __init__(self, route: str, clock: Callable[[], float] = lambda: time.monotonic()) -> None:
        self.route, self.clock = route, clock
        self.at, self.since_epoch = clock(), time.time()
        self.parts: dict[str, tuple[float, float]] = {}
        self.requests = 0
        # Its ServedTrace (runtime/tracing/tracer.py), where it has one.
        self.trace: object | None = None

    def note(self, name: str, begin: float, end: float) -> None:
        """Note that a part of this name took from `begin` to `end`."""
        before = self.parts.get(name)
        self.parts[name] = (begin, end) if before is None else (before[0], end)


# The HTTP request whose handler runs.
RECEIVED: ContextVar[ReceivedRequest | None] = ContextVar("received", default=None)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Note the time of what is done within as a part of the HTTP request, if one is handled."""
    received_request = RECEIVED.get()
    begin = 0.0 if received_request is None else received_request.clock()
    try:
        yield
    finally:
        if received_request is not None:
            received_request.note(name, begin, received_request.clock())


def noted(name: str, at: float | None = None) -> None:
    """Note that a part of the HTTP request, if one is handled, went on until now, or until `at`."""
    received_request = RECEIVED.get()
    if received_request is not None:
        now = received_request.clock() if at is None else at
        received_request.note(name, now, now)
