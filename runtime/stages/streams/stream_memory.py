# SPDX-License-Identifier: Apache-2.0
"""The memory for items of streams: blocks that peers may read, blocks that pulls fill, and the bytes that are kept.

An item that is sent lies in blocks of its own under an epoch slot of its own. The cell of the slot is bumped before the
blocks are free again, so that a peer that reads them too late sees another number than it was told (as for KV blocks).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import EPOCH_SLOTS, KVStorage
from pontil.runtime.transfer.grants import Grant, Grants

BLOCK_BYTES = 16 << 10
# The part of the memory that is blocks; the rest is for kept items.
BLOCK_SHARE = 4
# Blocks of even the smallest memory.
FEWEST_BLOCKS = 16


def plain_layout(block_bytes: int) -> KVLayout:
    """Return a layout whose blocks have this size, a multiple of 64. Their cells mean nothing."""
    return KVLayout(block_size=8, num_layers=1, num_kv_heads=1, head_dim=block_bytes // 64, dtype="float32")


@dataclass(frozen=True, slots=True, eq=False)
class StagedItem:
    """An item that peers can read: its blocks, each with its digest, under an epoch. `name` is that of its grant."""

    name: str
    slot: int
    epoch: int
    blocks: list[int]
    digests: list[int]


class StreamMemory:
    """At most `total` bytes, a quarter of it blocks. With `grants`, peers need one to read an item across a network.

    Conservation: free + staged + pulled = all blocks but block 0, and free + staged slots = EPOCH_SLOTS. Staging leaves
    half of the blocks to pulls, which end by themselves: so items always arrive, and those that are sent are taken.
    """

    def __init__(self, total: int, block_bytes: int = BLOCK_BYTES, grants: Grants | None = None) -> None:
        self.block_bytes, self.grants = block_bytes, grants
        self.capacity = max(FEWEST_BLOCKS, total // BLOCK_SHARE // block_bytes)
        self.keepable = max(0, total - self.capacity * block_bytes)
        self.storage = KVStorage(plain_layout(block_bytes), self.capacity + 1, torch.device("cpu"))
        self.free = list(range(self.capacity, 0, -1))
        self.slots = deque(range(EPOCH_SLOTS))
        self.last_epoch = EPOCH_SLOTS - 1
        # Bytes of the items that producers keep.
        self.kept = 0

    @property
    def half(self) -> int:
        """The blocks that one item may take, and that staging leaves free."""
        return self.capacity // 2

    @property
    def share(self) -> int:
        """The blocks that one stream may take if it has more than one item."""
        return max(1, self.half // 8)

    @property
    def most_item_bytes(self) -> int:
        return self.half * self.block_bytes

    def seats_for(self, item_bytes: int, positions: int) -> int:
        """Return how many runs can keep all of their items, at most `positions` of this size each."""
        return self.keepable // max(1, item_bytes * positions)

    def blocks_for(self, size: int) -> int:
        """Return the number of blocks of an item of so many bytes; an empty one has a block, too."""
        return max(1, -(-size // self.block_bytes))

    def stage(self, name: str, data: bytes, secret: str) -> StagedItem | None:
        """Make an item readable for peers. Return None while there is no room."""
        count = self.blocks_for(len(data))
        if not self.slots or len(self.free) - count < self.half:
            return None
        blocks, slot = [self.free.pop() for _ in range(count)], self.slots.popleft()
        self.write(blocks, data)
        made = StagedItem(name, slot, int(self.storage.epochs[slot]), blocks, self.storage.digests(blocks))
        if self.grants is not None:
            self.grants.open(Grant(name, made.epoch, secret), slot)
            self.grants.allow(name, blocks)
        return made

    def write(self, blocks: Sequence[int], data: bytes) -> None:
        """Write the bytes to the blocks in their order; the rest of the last one is zero."""
        rest = np.frombuffer(data, dtype=np.uint8)
        for block in blocks:
            row, rest = rest[: self.block_bytes], rest[self.block_bytes :]
            self.storage.bytes[block, : len(row)] = row
            self.storage.bytes[block, len(row) :] = 0

    def unstage(self, staged: StagedItem) -> None:
        """Free the blocks of an item, which peers read no more: whoever still does, sees another epoch."""
        if self.grants is not None:
            self.grants.close(staged.name)
        self.last_epoch += 1
        self.storage.set_epoch(staged.slot, self.last_epoch)
        self.slots.append(staged.slot)
        self.give_back(staged.blocks)

    def take(self, count: int) -> list[int] | None:
        """Return blocks for a pull, or None while there are too few."""
        return None if count > len(self.free) else [self.free.pop() for _ in range(count)]

    def give_back(self, blocks: Sequence[int]) -> None:
        self.free.extend(reversed(blocks))

    def read(self, blocks: Sequence[int], size: int) -> NDArray[np.uint8]:
        """Return a copy of the first `size` bytes of the blocks in their order: uint8 [size]."""
        data: NDArray[np.uint8] = self.storage.bytes[list(blocks)].reshape(-1)[:size]
        return data
