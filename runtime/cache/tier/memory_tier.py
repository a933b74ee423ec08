# SPDX-License-Identifier: Apache-2.0
"""A tier in the memory of the host."""

import time

import numpy as np

from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.tier.slot_entries import SlotEntries
from pontil.runtime.cache.tier.tier import Block


class MemoryTier(SlotEntries):
    """A KVTier in one range of memory, whose pages are taken as slots are first used. Raises MemoryError where the
    range cannot be had."""

    def __init__(self, size: int, block_bytes: int) -> None:
        super().__init__(size // block_bytes)
        self.name = "memory"
        self.slots = np.empty((self.capacity, block_bytes), dtype=np.uint8)

    def put(self, key: Key, block: Block, digest: int) -> None:
        assert key not in self.entries
        slot = self.free.pop()
        self.slots[slot] = block
        self.entries[key] = slot, digest

    def get(self, key: Key, into: Block) -> int | None:
        entry = self.entries.get(key)
        if entry is None:
            return None
        slot, digest = entry
        into[:] = self.slots[slot]
        return digest

    def drop(self, key: Key) -> None:
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.free.append(entry[0])

    def probe(self, count: int, into: Block) -> float:
        source = np.ones((count, len(into)), dtype=np.uint8)
        start_time = time.perf_counter()
        for row in source:
            into[:] = row
        return time.perf_counter() - start_time

    def close(self) -> None:
        self.entries.clear()
