# SPDX-License-Identifier: Apache-2.0
"""The blocks of tiers that leases keep there: they leave for no other block."""

import queue
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.tier.tier import KVTier


@dataclass(frozen=True, slots=True)
class PinResult:
    """The answer to the call with this `ticket`: a block is kept in a tier, or not. Without a ticket it is the end of a
    pin: the block was damaged, or its tier was switched off."""

    key: Key
    ticket: int | None
    is_kept: bool


@dataclass(slots=True)
class TierPins:
    """The pinned keys of each tier. The thread that stores makes all calls but `most`, `count` and `take`, which the
    engine's makes: it has the `results` in the order in which they came about.

    Conservation: a key is pinned in one tier, which has the block, or in none; in each at most a `share` of its slots
    is, and never all, so that a full tier always has a block that may leave.
    """

    share: float = 0.0
    by_tier: dict[str, set[Key]] = field(default_factory=dict)
    results: queue.SimpleQueue[PinResult] = field(default_factory=queue.SimpleQueue)

    def most(self, tiers: Iterable[KVTier]) -> int:
        """Return how many blocks of these tiers may be pinned."""
        return sum(max(0, min(int(self.share * tier.capacity), tier.capacity - 1)) for tier in tiers)

    def count(self, name: str) -> int:
        return len(self.by_tier.get(name, ()))

    def take(self) -> list[PinResult]:
        results: list[PinResult] = []
        while not self.results.empty():
            results.append(self.results.get())
        return results

    def of(self, tier: KVTier) -> set[Key]:
        return self.by_tier.setdefault(tier.name, set())

    def has_room(self, tier: KVTier) -> bool:
        return self.count(tier.name) < self.most([tier])

    def keeper(self, key: Key, tiers: Sequence[KVTier]) -> KVTier | None:
        """Return the last of these tiers that has a block and room to keep it."""
        return next((tier for tier in reversed(tiers) if key in tier and self.has_room(tier)), None)

    def answer(self, key: Key, ticket: int, tier: KVTier | None) -> None:
        """Pin a key in a tier, or in none, and say so."""
        if tier is not None:
            self.of(tier).add(key)
        self.results.put(PinResult(key, ticket, tier is not None))

    def remove(self, key: Key) -> None:
        """End a pin that nobody needs any more."""
        for keys in self.by_tier.values():
            keys.discard(key)

    def lose(self, tier: KVTier, keys: Iterable[Key], others: Sequence[KVTier]) -> None:
        """End the pins among these keys, of blocks that a tier has not any more. One of the others keeps a block that
        it has too; of any other it is said that it is lost."""
        for key in sorted(self.of(tier).intersection(keys)):
            self.of(tier).remove(key)
            if (having := self.keeper(key, others)) is None:
                self.results.put(PinResult(key, None, False))
            else:
                self.of(having).add(key)
