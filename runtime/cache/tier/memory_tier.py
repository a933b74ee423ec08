# SPDX-License-Identifier: Apache-2.0
"""A tier in the memory of the host."""

import time
from collections import OrderedDict

import numpy as np

from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.tier.tier import Block


class MemoryTier:
    """A KVTier in one range of memory, whose pages are taken as slots are first used. Raises MemoryError where the
    range cannot be had."""

    def __init__(self, size: int, block_bytes: int) -> None:
        self.name, self.capacity = "memory", size // block_bytes
        self.slots = np.empty((self.capacity, block_bytes), dtype=np.uint8)
        self.free = list(range(self.capacity - 1, -1, -1))
        # By key, the least recently used first: the slot and the digest.
        self.entries: OrderedDict[Key, tuple[int, int]] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self.entries

    def __len__(self) -> int:
        return len(self.entries)

    def known(self) -> list[Key]:
        # No other thread runs before this call into the interpreter ends, so none changes the entries meanwhile.
        return list(self.entries)

    def touch(self, key: Key) -> None:
        self.entries.move_to_end(key)

    def put(self, key: Key, block: Block, digest: int) -> None:
        assert key not in self.entries
        slot = self.free.pop()
        self.slots[slot] = block
        self.entries[key] = slot, digest

    def get(self, key: Key, into: Block) -> int | None:
        found = self.entries.get(key)
        if found is None:
            return None
        slot, digest = found
        into[:] = self.slots[slot]
        return digest

    def drop(self, key: Key) -> None:
        found = self.entries.pop(key, None)
        if found is not None:
            self.free.append(found[0])

    def eldest(self) -> Key | None:
        return next(iter(self.entries)) if not self.free else None

    def probe(self, count: int, into: Block) -> float:
        source = np.ones((count, len(into)), dtype=np.uint8)
        begun = time.perf_counter()
        for row in source:
            into[:] = row
        return time.perf_counter() - begun

    def close(self) -> None:
        self.entries.clear()
