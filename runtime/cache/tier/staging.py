# SPDX-License-Identifier: Apache-2.0
"""Copies of blocks between the pool and the thread that stores and reads them."""

from collections import deque
from typing import Any

import torch

from pontil.gpu_ops.kv.digest import block_digests
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.cache.tier.tier import Block

STAGING_BYTES = 32 << 20
LEAST_BLOCKS = 4


class StagingBuffers:
    """A fixed number of buffers of one block for those that were evicted. The engine's thread takes them, the storing
    thread gives them back, and has one more for a block that it reads.

    A block of a device is copied behind everything that was started there before, without waiting for it: the step that
    reuses the block is started after the copy. In the memory of a CPU the copy is made at once, and a block is read
    to its place. The memory that peers map (`KVStorage.shared`) is not touched where it is another one: it belongs to
    transfers.
    """

    def __init__(self, storage: KVStorage, size: int = STAGING_BYTES) -> None:
        self.storage = storage
        count = max(LEAST_BLOCKS, size // storage.layout.block_bytes)
        shape = (count + 1, storage.layout.block_bytes)
        self.buffers = torch.empty(shape, dtype=torch.uint8, pin_memory=storage.device.type == "cuda")
        self.rows = self.buffers.numpy()
        self.free = deque(range(count - 1, -1, -1))
        self.weights = storage.weights_of(len(storage.layout.kv_heads))

    def take(self, block: int) -> tuple[int, Any] | None:
        """Copy a block of the pool. Return the buffer's number and the moment when the copy is complete, or None where
        no buffer is free."""
        if not self.free:
            return None
        number = self.free.pop()
        if self.storage.staged:
            self.buffers[number].copy_(self.storage.own[block], non_blocking=True)
        else:
            self.rows[number] = self.storage.bytes[block]
        return number, self.storage.mark()

    def read(self, number: int, mark: Any) -> tuple[Block, int]:
        """Return the bytes in a buffer and their digest, once the copy is complete."""
        if self.storage.memory is not None:
            with self.storage.memory.after(mark):
                pass
        (digest,) = block_digests(self.rows, [number], self.weights)
        return self.rows[number], digest

    def target(self, block: int) -> Block:
        """Return the bytes into which a block is read that is to be in this place of the pool."""
        found: Block = self.rows[-1] if self.storage.staged else self.storage.bytes[block]
        return found

    def arrive(self, block: int, digest: int, mark: Any) -> bool:
        """Put what was read into its place, behind the mark, and return True if it has this digest. On return the copy
        is complete."""
        if block_digests(self.target(block)[None], [0], self.weights) != [digest]:
            return False
        if self.storage.memory is not None:
            with self.storage.memory.after(mark):
                self.storage.own[block].copy_(self.buffers[-1], non_blocking=True)
        return True

    def give_back(self, number: int) -> None:
        self.free.append(number)
