# SPDX-License-Identifier: Apache-2.0
"""The slots of a tier and the keys of the blocks in them, wherever the slots lie."""

from collections import OrderedDict
from collections.abc import Set

from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.tier.tier import NO_KEYS


class SlotEntries:
    """The part of a KVTier that does not depend on its medium. `entries` has the slot and the digest of each key, the
    least recently used first; `free` slots are used from the end."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: OrderedDict[Key, tuple[int, int]] = OrderedDict()
        self.free = list(range(capacity - 1, -1, -1))

    def __contains__(self, key: Key) -> bool:
        return key in self.entries

    def __len__(self) -> int:
        return len(self.entries)

    def known(self) -> list[Key]:
        # No other thread runs before this call into the interpreter ends, so none changes the entries meanwhile.
        return list(self.entries)

    def touch(self, key: Key) -> None:
        self.entries.move_to_end(key)

    def eldest(self, pinned: Set[Key] = NO_KEYS) -> Key | None:
        if self.free:
            return None
        # A pinned key is passed over once in a round of all, as if it had been used.
        for _ in range(len(self.entries)):
            key = next(iter(self.entries))
            if key not in pinned:
                return key
            self.entries.move_to_end(key)
        raise AssertionError("every slot of a tier is pinned")
