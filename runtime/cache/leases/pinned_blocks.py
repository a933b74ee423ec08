# SPDX-License-Identifier: Apache-2.0
"""The places where a worker keeps the blocks of its leases: its pool, and the tiers below it.

A leased block is in the pool first, with the book as one of its owners, so that eviction, which takes idle blocks,
needs not know of it. What is more than leases may have of the pool moves to a tier, the oldest first: a tier stores it
and pins it, and when that has said so, and not before, the pool's block becomes one like any other.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.tier.tier_pins import PinResult

# Blocks that begin to move to a tier in one turn of the engine's thread, which copies them.
PORTION = 8
# Seconds in which a tier has to take a block, while leases have more of the pool than is theirs.
PATIENCE = 5.0


class LeaseTiers(Protocol):
    """Tiers in which blocks may be pinned. A call is answered by a result with its ticket, in the order of calls."""

    @property
    def most_pinned(self) -> int:
        """The blocks that may be pinned now: fewer after a tier has failed."""

    def has(self, key: Key) -> bool:
        """Return whether a tier seems to have a block."""

    def pin(self, key: Key) -> int:
        """Keep a block where a tier has it, and return the ticket of the result."""

    def store_pinned(self, key: Key, block: int) -> int | None:
        """Store a block of the pool and keep it. Return the ticket of the result, None where that is not begun now."""

    def unpin(self, key: Key) -> None:
        """Keep a block no longer, whether the call to keep it was answered or not."""

    def pin_results(self) -> list[PinResult]:
        """Return what was answered, and which pins were lost, since the last call."""


class NoLeaseTiers:
    """The tiers of a worker that has none."""

    most_pinned = 0

    def has(self, key: Key) -> bool:
        return False

    def pin(self, key: Key) -> int:
        raise AssertionError("there is no tier")

    def store_pinned(self, key: Key, block: int) -> int | None:
        return None

    def unpin(self, key: Key) -> None: ...

    def pin_results(self) -> list[PinResult]:
        return []


@dataclass(slots=True)
class PinnedBlocks:
    """The blocks of leases by key: `leases` has the number of those on each. Not thread-safe: the engine's thread owns
    it.

    Conservation: each block is `owned` in the pool, pinned `below`, or both for as long as its move has the ticket in
    `moving`; one that a tier is believed to have is in `moving` alone. More than `most_owned` are owned only until
    tiers have taken the rest, and for PATIENCE if they take none.
    """

    pool: BlockPool
    most_owned: int
    tiers: LeaseTiers = field(default_factory=NoLeaseTiers)
    leases: Counter[Key] = field(default_factory=Counter)
    owned: dict[Key, int] = field(default_factory=dict)
    below: set[Key] = field(default_factory=set)
    moving: dict[Key, int] = field(default_factory=dict)
    # The number of owned blocks that are too many, and since when it has been that.
    excess_since: tuple[int, float] | None = None

    @classmethod
    def of(cls, pool: BlockPool, share: float, longest: int, tiers: LeaseTiers | None = None) -> "PinnedBlocks":
        """Return those of a pool: for good a share of it, and no block that the longest request may need. So each
        request that would run in an empty pool runs beside all leases, and no lease has to give way to any."""
        most_owned = max(0, min(int(share * pool.capacity), pool.capacity - longest))
        return cls(pool, most_owned, NoLeaseTiers() if tiers is None else tiers)

    def __len__(self) -> int:
        return len(self.leases)

    @property
    def most(self) -> int:
        """The blocks that leases may have in all."""
        return self.most_owned + self.tiers.most_pinned

    @property
    def excess(self) -> int:
        return len(self.owned) - self.most_owned

    def found(self, keys: Iterable[Key]) -> int:
        """Return how many blocks, from the first on, are in the pool, or seem to be in a tier."""
        count = 0
        for key in keys:
            if not (key in self.leases or self.pool.index.find(key) is not None or self.tiers.has(key)):
                break
            count += 1
        return count

    def fresh(self, keys: Iterable[Key]) -> int:
        """Return how many of these blocks are in no lease yet."""
        return sum(key not in self.leases for key in keys)

    def pin(self, keys: Sequence[Key]) -> bool:
        """Keep blocks that were found, once more those that are in leases, or change nothing and return False."""
        fresh = [key for key in keys if key not in self.leases]
        blocks = {key: block for key in fresh if (block := self.pool.index.find(key)) is not None}
        if not self.pool.reserve(0, list(blocks.values())):
            return False
        for key in fresh:
            if key in blocks:
                self.own(key, blocks[key])
            else:
                self.moving[key] = self.tiers.pin(key)
        self.leases.update(keys)
        return True

    def own(self, key: Key, block: int) -> None:
        self.owned[key] = block
        self.pool.index.observer.leased(block)

    def unpin(self, keys: Sequence[Key]) -> None:
        """Keep these blocks for a lease less."""
        self.leases.subtract(keys)
        over = [key for key in keys if not self.leases[key]]
        self.pool.release([self.owned.pop(key) for key in over if key in self.owned])
        for key in over:
            del self.leases[key]
            if key in self.below or key in self.moving:
                self.below.discard(key)
                self.moving.pop(key, None)
                self.tiers.unpin(key)

    def settle(self) -> set[Key]:
        """Take note of what tiers have answered. Return the keys of leased blocks that are lost."""
        lost = set[Key]()
        for result in self.tiers.pin_results():
            key = result.key
            if result.ticket is None and key in self.below:
                self.below.remove(key)
            elif result.ticket is None or self.moving.get(key) != result.ticket:
                continue
            else:
                del self.moving[key]
            if result.is_kept:
                self.below.add(key)
                if key in self.owned:
                    self.pool.release([self.owned.pop(key)])
            elif key not in self.owned and not self.take_back(key):
                lost.add(key)
        return lost

    def take_back(self, key: Key) -> bool:
        """Own a block in the pool that no tier has any more, if it is there."""
        block = self.pool.index.find(key)
        if block is None or not self.pool.reserve(0, [block]):
            return False
        self.own(key, block)
        return True

    def move(self, promised: int) -> None:
        """Begin to move some blocks to tiers, if there are too many in the pool, with so many that are promised."""
        count = self.excess + promised
        if count <= 0 or not self.tiers.most_pinned:
            return
        room = self.tiers.most_pinned - len(self.below) - len(self.moving)
        count = min(count - len(self.owned.keys() & self.moving.keys()), room, PORTION)
        for key, block in self.owned.items():
            if count <= 0:
                return
            if key not in self.moving:
                ticket = self.tiers.store_pinned(key, block)
                if ticket is None:
                    return
                self.moving[key] = ticket
                count -= 1

    def is_stuck(self, now: float) -> bool:
        """Return whether too many blocks are in the pool, and tiers have taken none for too long."""
        if self.excess <= 0:
            self.excess_since = None
        elif self.excess_since is None or self.excess_since[0] != self.excess:
            self.excess_since = self.excess, now
        return self.excess_since is not None and now - self.excess_since[1] > PATIENCE

    def check(self) -> None:
        """Assert the conservation laws."""
        places = self.owned.keys() | self.below | self.moving.keys()
        assert self.leases.keys() == places and all(count > 0 for count in self.leases.values())
        assert not self.below & (self.owned.keys() | self.moving.keys()), "a block moves that is below"
        assert all(self.pool.owners[block] >= 1 for block in self.owned.values()), "a leased block has no owner"
        assert all(self.pool.index.blocks.get(key) == block for key, block in self.owned.items())
