# SPDX-License-Identifier: Apache-2.0
"""The bounds of what a hub may do to whoever asks it: how slow it may be, and how often it is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from pontil.runtime.errors import ModelError, PontilError
from pontil.runtime.loaders.fetching import say

T = TypeVar("T")


class PassingError(PontilError):
    """A failure that may pass: a broken connection, or a hub that is busy. `retry_after` is in seconds, as the hub
    says."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def pause(seconds: float) -> None:
    """Wait so long, or until the process is interrupted."""
    Event().wait(seconds)


@dataclass(frozen=True, slots=True)
class Patience:
    """`silence`: seconds without any byte. `least_bytes` have to come in each `window` of seconds, and are what one
    attempt has to bring so that those before it are forgotten. `most_failures` in a row end it; the `first_delay`
    between two doubles, up to the `longest_delay`."""

    silence: float = 30.0
    window: float = 60.0
    least_bytes: int = 1 << 16
    most_failures: int = 5
    first_delay: float = 1.0
    longest_delay: float = 60.0
    wait: Callable[[float], None] = pause

    def insist(self, attempt: Callable[[], T], done: Callable[[], int] = lambda: 0) -> T:
        """Return what an attempt returns, once one succeeds; `done` are the bytes that there are so far. Raises
        ModelError when too many fail that bring nothing, and at once where the hub asks to wait for long."""
        failures, before = 0, done()
        while True:
            try:
                return attempt()
            except PassingError as error:
                failures = 1 if done() - before >= self.least_bytes else failures + 1
                before = done()
                if failures >= self.most_failures:
                    raise ModelError(f"{error}, {failures} times in a row: try again later") from None
                if error.retry_after > self.longest_delay:
                    raise ModelError(f"{error}, and asks to wait {error.retry_after:.0f} s: try again then") from None
                delay = min(self.first_delay * 2 ** (failures - 1), self.longest_delay)
                say(f"{error}: trying again")
                self.wait(max(delay, error.retry_after))


class TransferPace:
    """A look at how fast bytes come: a trickle would pass for a connection that works."""

    def __init__(self, patience: Patience, host: str) -> None:
        self.patience, self.host = patience, host
        self.since, self.count = time.monotonic(), 0

    def add(self, count: int) -> None:
        """Count bytes. Raises PassingError at the end of a window that brought too few."""
        self.count += count
        now = time.monotonic()
        if now - self.since < self.patience.window:
            return
        if self.count < self.patience.least_bytes:
            raise PassingError(f"{self.host} sends only {self.count} bytes in {now - self.since:.0f} s")
        self.since, self.count = now, 0
