# SPDX-License-Identifier: Apache-2.0
"""A consumer's relation to one producer of an edge: asked, heard of, or lost."""

from dataclasses import dataclass, field

from pontil.runtime.stages.streams.subscription import REPEAT

# Seconds between two Subscribes to a producer that answers.
RENEW_EVERY = 2.0
# Items in a row that may arrive damaged before their producer is given up.
MOST_DAMAGED = 8
# Seconds between two reports of a lost producer.
REPORT_EVERY = 10.0


@dataclass(slots=True, eq=False)
class ProducerLink:
    """`first_index` is the first item that the producer makes, None while it does not know; from `handed_over_at` on it
    makes none. It has not answered since
    `silent_since`; None: it has. `damaged` maps items to the epochs under which they did not arrive. With a reason for
    which it is `lost`, nothing is asked of it any more."""

    peer: str
    endpoint: str
    ask_at: float
    first_index: int | None = None
    handed_over_at: int | None = None
    is_attached: bool = False
    silent_since: float | None = None
    to_ack: set[int] = field(default_factory=set)
    told: int | None = None
    damaged: dict[int, int] = field(default_factory=dict)
    failures: int = 0
    lost: str | None = None
    reported_at: float = float("-inf")

    def makes(self, index: int) -> bool:
        """Return whether the producer makes this item, or may."""
        is_before = self.first_index is not None and index < self.first_index
        is_after = self.handed_over_at is not None and index >= self.handed_over_at
        return self.lost is None and not is_before and not is_after

    def asked(self, now: float) -> None:
        """Record that a Subscribe was sent."""
        if self.silent_since is None:
            self.silent_since = now
        self.ask_at = now + REPEAT

    def answered(self, now: float) -> None:
        self.silent_since, self.ask_at = None, now + RENEW_EVERY

    def is_silent(self, now: float, patience: float) -> bool:
        return self.silent_since is not None and now - self.silent_since >= patience

    def spoiled(self, index: int, epoch: int, now: float) -> bool:
        """Record an item that arrived damaged, to be asked for again at once. Return whether that makes too many."""
        self.damaged[index] = epoch
        self.failures += 1
        self.ask_at = now
        return self.failures > MOST_DAMAGED

    def good(self, index: int) -> None:
        """Record an item that is here."""
        self.failures = 0
        self.to_ack.add(index)
        self.damaged.pop(index, None)
