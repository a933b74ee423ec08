# SPDX-License-Identifier: Apache-2.0
"""Tiers one below the other: what leaves one goes to the next."""

import logging
import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.tier.tier import Block, KVTier
from pontil.runtime.cache.tier.tier_pins import TierPins

logger = logging.getLogger("pontil.worker")


@dataclass(slots=True)
class TierFound:
    """A block that was read: the digest it was stored with, and the tier that had it."""

    digest: int
    tier: str


@dataclass(slots=True)
class TierChain:
    """Tiers, the fastest first. A block is stored in the first; the least recently used block of a full tier moves to
    the next one, and out of the last. One that leases keep has a pin among the `pins` in one tier, and stays there. A
    tier that fails is switched off, and the others go on. `failures` counts these.

    One thread makes all calls but `changes`, which another one makes, and `tier_of`, `in` and `known`, which any does.
    """

    tiers: tuple[KVTier, ...]
    block_bytes: int
    failures: int = 0
    pins: TierPins = field(default_factory=TierPins)
    # For blocks on their way from one tier to the next.
    carried: list[Block] = field(init=False)
    # Keys that came or went; None stands for all that a tier had.
    changed: queue.SimpleQueue[Key | None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.tiers = tuple(tier for tier in self.tiers if tier.capacity > 0)
        self.carried = [np.empty(self.block_bytes, dtype=np.uint8) for _ in self.tiers]

    def tier_of(self, key: Key) -> str | None:
        """Return the name of the tier that has a block. Any thread may ask."""
        return next((tier.name for tier in self.tiers if key in tier), None)

    def __contains__(self, key: Key) -> bool:
        return self.tier_of(key) is not None

    def known(self) -> list[Key]:
        """Return the keys of all tiers, those first that will leave first."""
        return [key for tier in reversed(self.tiers) for key in tier.known()]

    def changes(self) -> list[Key | None]:
        """Return the keys that came or went since the last call; None where a tier was switched off."""
        keys: list[Key | None] = []
        while not self.changed.empty():
            keys.append(self.changed.get())
        return keys

    def is_first_in(self, key: Key) -> bool:
        """Return whether the first tier has a block, so that storing it would change its age only."""
        tiers = self.tiers
        return bool(tiers) and key in tiers[0]

    def store(self, key: Key, block: Block, digest: int) -> None:
        """Store a block, and let others move down for it."""
        self.store_in(self.tiers, key, block, digest)

    def store_in(self, tiers: Sequence[KVTier], key: Key, block: Block, digest: int) -> None:
        if tiers and not self.put_in(tiers, key, block, digest):
            self.store_in(tiers[1:], key, block, digest)

    def put_in(self, tiers: Sequence[KVTier], key: Key, block: Block, digest: int) -> bool:
        """Store a block in the first of these tiers. Return False if that one failed."""
        first, *below = tiers
        try:
            if key in first:
                first.touch(key)
            else:
                self.make_room(first, below)
                first.put(key, block, digest)
                self.changed.put(key)
        except OSError as error:
            self.switch_off(first, error)
            return False
        return True

    def pin(self, key: Key, ticket: int) -> None:
        """Keep a block for leases where a tier has it."""
        self.pins.answer(key, ticket, self.pins.keeper(key, self.tiers))

    def store_pinned(self, key: Key, ticket: int, block: Block, digest: int) -> None:
        """Store a block, and keep it for leases: in the last tier that has room for pins, since a disk outlives more
        than memory does."""
        tiers = self.tiers
        for place in reversed(range(len(tiers))):
            if self.pins.has_room(tiers[place]) and self.put_in(tiers[place:], key, block, digest):
                self.pins.answer(key, ticket, tiers[place])
                return
        self.pins.answer(key, ticket, None)

    def make_room(self, tier: KVTier, below: Sequence[KVTier]) -> None:
        """Move the block that leaves a full tier for another to the tier below."""
        leaving = tier.eldest(self.pins.of(tier))
        if leaving is None:
            return
        if below:
            buffer = self.carried[len(below)]
            digest = tier.get(leaving, buffer)
            if digest is not None:
                self.store_in(below, leaving, buffer, digest)
        tier.drop(leaving)
        if leaving not in self:
            self.changed.put(leaving)

    def touch(self, key: Key) -> None:
        for tier in self.tiers:
            if key in tier:
                tier.touch(key)

    def read(self, key: Key, into: Block) -> TierFound | None:
        """Copy a block from the first tier that has it. The caller compares the digest."""
        for tier in self.tiers:
            try:
                if key in tier:
                    digest = tier.get(key, into)
                    if digest is not None:
                        tier.touch(key)
                        return TierFound(digest, tier.name)
                    self.drop_from(tier, key)
            except OSError as error:
                self.switch_off(tier, error)
        return None

    def drop(self, key: Key) -> None:
        """Forget a block in every tier."""
        for tier in self.tiers:
            try:
                self.drop_from(tier, key)
            except OSError as error:
                self.switch_off(tier, error)

    def drop_from(self, tier: KVTier, key: Key) -> None:
        tier.drop(key)
        self.changed.put(key)
        self.pins.lose(tier, [key], self.tiers)

    def switch_off(self, tier: KVTier, error: OSError) -> None:
        """Use a tier no more. What it held is computed when it is needed."""
        if tier not in self.tiers:
            return
        self.tiers = tuple(other_tier for other_tier in self.tiers if other_tier is not tier)
        self.failures += 1
        self.changed.put(None)
        self.pins.lose(tier, list(self.pins.of(tier)), self.tiers)
        logger.error(
            "the %s tier of the KV cache failed (%s) and is switched off until this worker starts again: prefixes that "
            "it held are computed",
            tier.name,
            error.strerror or error,
        )
        tier.close()

    def close(self) -> None:
        for tier in self.tiers:
            tier.close()
        self.tiers = ()
