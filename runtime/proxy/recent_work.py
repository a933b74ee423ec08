# SPDX-License-Identifier: Apache-2.0
"""The tokens that each worker was given lately: what it has at this moment says little where requests are short."""

from math import exp

from pontil.runtime.proxy.registry import Registry

# Time constant in seconds: a few turns of a conversation.
MEMORY_SECONDS = 300.0


class RecentWork:
    """Exponentially decaying sums, in the `recent` of each worker of a registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.at: float | None = None

    def add(self, incarnation: str, tokens: int, now: float) -> None:
        """Add tokens that a worker has to compute, or has made."""
        before, self.at = self.at, now
        if before is not None and now > before:
            kept = exp((before - now) / MEMORY_SECONDS)
            for worker in self.registry.workers.values():
                worker.recent *= kept
        if incarnation in self.registry.workers:
            self.registry.workers[incarnation].recent += tokens
