# SPDX-License-Identifier: Apache-2.0
"""Rates of counters, over the last seconds."""

from collections import deque

# Seconds over which a rate is measured: workers tell their counters twice a second, so that a shorter time would jump.
WINDOW = 3.0


class RateMeter:
    """The rate of one counter that only grows. One that shrinks belongs to another process, and begins anew."""

    def __init__(self) -> None:
        self.samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> float:
        """Take the counter's value; return its growth per second since about WINDOW ago, 0 at first."""
        samples = self.samples
        if samples and value < samples[-1][1]:
            samples.clear()
        samples.append((now, value))
        while len(samples) > 2 and samples[1][0] <= now - WINDOW:
            samples.popleft()
        passed = now - samples[0][0]
        return (value - samples[0][1]) / passed if passed > 0 else 0.0


class RateMeters:
    """The meters of many counters, by name. Those that are not read between two calls of `sweep` are forgotten."""

    def __init__(self) -> None:
        self.meters: dict[str, RateMeter] = {}
        self.read: set[str] = set()

    def rate(self, name: str, now: float, value: float) -> float:
        """Return the rate of the counter of this name, which has the value now."""
        self.read.add(name)
        return self.meters.setdefault(name, RateMeter()).add(now, value)

    def sweep(self) -> None:
        self.meters = {name: meter for name, meter in self.meters.items() if name in self.read}
        self.read.clear()
