# SPDX-License-Identifier: Apache-2.0
"""The tokens that each worker was given lately: what it has at this moment says little where requests are short."""

from math import exp

from pontil.runtime.proxy.fleet.registry import Registry

# Time constant in seconds: a few turns of a conversation.
MEMORY_SECONDS = 300.0
# Seconds of one step of decay, in which a sum loses less than a thousandth: each step looks at all workers.
STEP = 0.25


class RecentWork:
    """Exponentially decaying sums, in the `recent` of each worker of a registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.at: float | None = None

    def add(self, incarnation: str, tokens: int, now: float) -> None:
        """Add tokens that a worker has to compute, or has made."""
        if self.at is None:
            self.at = now
        elif now - self.at >= STEP:
            kept = exp((self.at - now) / MEMORY_SECONDS)
            self.at = now
            for worker in self.registry.workers.values():
                worker.recent *= kept
        if incarnation in self.registry.workers:
            self.registry.workers[incarnation].recent += tokens
