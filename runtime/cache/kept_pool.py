# SPDX-License-Identifier: Apache-2.0
"""A pool in files that the launcher holds, so that it outlives this process: the next one finds its blocks."""

import os
import time
from collections.abc import Callable

import torch

from pontil.gpu_ops.kernels.weights.file_memory import FileMemory
from pontil.runtime.cache.block_recorder import ALONE, BlockRecorder, RecordFollowers
from pontil.runtime.cache.block_records import BlockRecords
from pontil.runtime.cache.follower_records import FollowerRecords
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import HEADER_BYTES, KVStorage, fence, zero


class KeptPool:
    """Two anonymous files: of the blocks, and of their records. What is in them is used only if all that its bits
    depend on is as it was, for which `identity` stands; else its memory is given back at once.

    The storage that it opens owns the file of blocks. That of records is closed, as it stays mapped."""

    def __init__(self, blocks: int, records: int, identity: bytes) -> None:
        for file in (blocks, records):
            os.set_inheritable(file, False)
        self.blocks, self.file, self.identity = blocks, records, identity
        self.records = BlockRecords.kept(records, identity)
        if self.records is None:
            give_back(blocks)

    @property
    def num_blocks(self) -> int | None:
        """The blocks of the pool that was left here, or None if there is none."""
        return None if self.records is None else self.records.num_blocks

    def open(self, layout: KVLayout, num_blocks: int, device: torch.device, first_epoch: int) -> KVStorage:
        """Open the pool, with what is in it if it had as many blocks. Until it is complete, the files count for
        nothing."""
        is_new = self.num_blocks != num_blocks
        if is_new:
            if self.records is not None:
                give_back(self.blocks)
            self.records = BlockRecords.renew(self.file, num_blocks)
        os.close(self.file)
        storage = KVStorage(layout, num_blocks, device, file=self.blocks, first_epoch=first_epoch)
        if is_new and self.records is not None:
            self.records.declare(self.identity)
        return storage

    def recorder(
        self,
        storage: KVStorage,
        pool: BlockPool,
        clock: Callable[[], float] = lambda: time.monotonic(),
        followers: RecordFollowers = ALONE,
    ) -> BlockRecorder:
        """Return what records the blocks of a fresh pool from now on, those that were left here among them."""
        assert self.records is not None, "the pool is opened first"
        recorder = BlockRecorder(self.records, storage, pool, clock, followers)
        recorder.restore()
        return recorder

    def follower_records(self, storage: KVStorage) -> FollowerRecords:
        """Return the same for the pool of a rank that is not its worker's driver."""
        assert self.records is not None, "the pool is opened first"
        return FollowerRecords(self.records, storage)


def give_back(file: int) -> None:
    """Zero a file of blocks and give its memory back. Its size stays: a peer of an earlier process may still read it,
    and notices by the epoch, which is gone first."""
    size = os.fstat(file).st_size
    if size > HEADER_BYTES:
        memory = FileMemory(size, 0)
        memory.show(file, writable=True)
        memory.tensor[:HEADER_BYTES] = 0
        fence()
        zero(memory, HEADER_BYTES, size)
