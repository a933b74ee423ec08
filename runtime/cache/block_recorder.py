# SPDX-License-Identifier: Apache-2.0
"""Keeps the records of a pool that outlives its worker (block_records.py) in step with the prefix index."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pontil.runtime.cache.block_records import MOST_KEYS, BlockRecord, BlockRecords
from pontil.runtime.cache.follower_records import tag_of
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage

logger = logging.getLogger("pontil.cache")

# The last use of a leased block: later than any other, so that the next process evicts it last. It may have been used
# longest ago, and is not leased anew before that process has warmed up.
LEASED = 1 << 62
# Share of the time of steps that may be spent on records while there is work.
STEP_SHARE = 0.01


class RecordFollowers(Protocol):
    """The other ranks of a worker, which record their parts of the same blocks."""

    @property
    def left(self) -> Sequence[dict[int, int]]:
        """The tags of the blocks that each rank has left from an earlier process."""

    def record(self, block: int, tag: int) -> None:
        """Have a block recorded before anything that is computed later."""

    def drop(self, blocks: Sequence[int]) -> None:
        """Have records dropped before anything that is computed later."""


class NoRecordFollowers:
    """The other ranks of a worker of one process."""

    left: Sequence[dict[int, int]] = ()

    def record(self, block: int, tag: int) -> None: ...
    def drop(self, blocks: Sequence[int]) -> None: ...


ALONE = NoRecordFollowers()


class BlockRecorder:
    """The observer of a pool and its index. A block is recorded once its bytes are final: when it is full, or when it
    has a key and no owner. Its record is cleared before it can be written again.

    The digest is computed later, by `work`, so that no step waits for it, and a step later at the earliest: what the
    step's requests were told is then on its way, should this process die (A9). A block that was not recorded before the
    process ends is dropped. Blocks of an earlier process are found by `restore`, and checked when a prompt first asks
    for them. One that is damaged is forgotten, and zeroed: its bytes might not be numbers.

    Not thread-safe: the engine's thread owns it.
    """

    def __init__(
        self,
        records: BlockRecords,
        storage: KVStorage,
        pool: BlockPool,
        clock: Callable[[], float] = lambda: time.monotonic(),
        followers: RecordFollowers = ALONE,
    ) -> None:
        self.records, self.storage, self.pool, self.clock = records, storage, pool, clock
        self.followers = followers
        # Blocks to record, in the order in which they became final; those that did in the last step; and those that
        # will be final without an owner.
        self.pending: dict[int, None] = {}
        self.fresh: dict[int, None] = {}
        self.unfinished: set[int] = set()
        # The digests of an earlier process's blocks that were not checked yet.
        self.unchecked: dict[int, int] = {}
        self.last_use = 0
        self.budget = 0.0
        self.restored = self.damaged = 0

    def restore(self) -> None:
        """Put the blocks that were recorded before into the pool and its index, in the order of their use, and zero the
        others. The pool is fresh. Everything that is registered from now on is recorded."""
        index = self.pool.index
        for record in self.records.all():
            if any(key in index.blocks for key in record.keys) or not self.has_all_parts(record):
                continue
            for key in record.keys:
                index.add(key, record.block)
            self.unchecked[record.block] = record.digest
            self.last_use = max(self.last_use, record.used if record.used < LEASED else 0)
        self.pool.restore(list(self.unchecked))
        for block in range(self.records.num_blocks):
            if block not in self.unchecked:
                self.records.clear(block)
        self.storage.erase(block for block in range(self.storage.num_blocks) if block not in self.unchecked)
        useless = {block for tags in self.followers.left for block in tags if block not in self.unchecked}
        self.followers.drop(sorted(useless))
        self.restored = len(self.unchecked)
        self.pool.watch(self)

    def has_all_parts(self, record: BlockRecord) -> bool:
        """Return whether every rank has its part of a block."""
        return all(tags.get(record.block) == tag_of(record.keys[0]) for tags in self.followers.left)

    @property
    def is_due(self) -> bool:
        return bool(self.pending or self.fresh)

    def added(self, block: int, final: bool) -> None:
        self.used(block)
        if final:
            self.unfinished.discard(block)
            self.fresh[block] = None
        else:
            self.unfinished.add(block)

    def used(self, block: int) -> None:
        """Note that a block was used last of all."""
        self.last_use += 1
        self.records.touch(block, self.last_use)

    def leased(self, block: int) -> None:
        self.records.touch(block, LEASED)

    def rested(self, block: int) -> None:
        self.used(block)
        if block in self.unfinished:
            self.unfinished.discard(block)
            self.fresh[block] = None

    def forgotten(self, block: int) -> None:
        self.pending.pop(block, None)
        self.fresh.pop(block, None)
        self.unfinished.discard(block)
        if self.records.has(block):
            self.records.clear(block)
            self.followers.drop([block])
        if self.unchecked.pop(block, None) is not None:
            self.storage.erase([block])

    def confirms(self, block: int) -> bool:
        """Check a block of an earlier process, once. A damaged one is forgotten and free."""
        digest = self.unchecked.get(block)
        if digest is None:
            return True
        if self.storage.digests([block]) == [digest]:
            del self.unchecked[block]
            return True
        self.damaged += 1
        logger.warning("a block of KV that an earlier process left is damaged; it is computed again")
        self.pool.discard(block)
        return False

    def after_step(self, seconds: float) -> None:
        """Record some blocks of earlier steps after one that took so long, in a small share of its time. What one block
        took too long is saved in later steps."""
        self.budget = min(self.budget, 0.0) + seconds * STEP_SHARE
        self.work()
        self.ripen()

    def rest(self, seconds: float) -> None:
        """Record blocks for so long, while there is nothing else to do."""
        self.ripen()
        self.budget = seconds
        self.work()

    def ripen(self) -> None:
        self.pending |= self.fresh
        self.fresh.clear()

    def work(self) -> None:
        began = self.clock()
        while self.pending and self.budget > 0.0:
            self.record(next(iter(self.pending)))
            now = self.clock()
            self.budget, began = self.budget - (now - began), now

    def record(self, block: int) -> None:
        del self.pending[block]
        keys = tuple(self.pool.index.keys[block][:MOST_KEYS])
        self.records.write(block, self.storage.digests([block])[0], keys)
        self.followers.record(block, tag_of(keys[0]))
