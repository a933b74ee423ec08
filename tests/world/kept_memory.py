# SPDX-License-Identifier: Apache-2.0
"""Memory that outlives its worker, in the world. The launcher's files, the product's pool and its records are real;
here is what a death does to the step that it ends, and what befalls the files between two processes."""

import mmap
import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from hash_model import HashRunner, PrefixHashes
from virtual_time import HERE

from pontil.gpu_ops.kv.digest import block_digests, digest_weights
from pontil.runtime.cache.block_records import HEADER_BYTES, RECORD_BYTES, BlockRecords
from pontil.runtime.cache.kept_pool import KeptPool
from pontil.runtime.cache.storage import HEADER_BYTES as POOL_HEADER_BYTES

# All that the bytes of a block depend on, and the same of another model.
IDENTITY, FOREIGN = bytes(32), b"another model".ljust(32)
# Seconds of one look at the recorder's clock, of which there are one and more for each block that it records.
RECORDING = 20e-6
# Share of successors that find their memory changed, and the places of it that are.
CHANGED, PLACES = 0.5, 20
# Differs in each cell from what was there.
OTHER = 0x55


class TornRunner(HashRunner):
    """A runner over memory that outlives its process, whose death in the middle of a step tears what that writes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        assert HERE.world.current is not None
        self.process = HERE.world.current
        self.process.at_death.append(self.tear)
        # Of the turn with this number: blocks with their first position that it writes, and that after the last one.
        self.turn = -1
        self.written: list[tuple[int, int, int]] = []

    def write(self, blocks: Sequence[int], hashes: PrefixHashes, start: int, end: int) -> None:
        super().write(blocks, hashes, start, end)
        if self.turn != self.process.turns:
            self.turn = self.process.turns
            self.written.clear()
        for index in range(start // self.size, -(-end // self.size)):
            base = index * self.size
            self.written.append((blocks[index], max(start - base, 0), min(end - base, self.size)))

    def tear(self) -> None:
        """Leave other bytes where the turn that has not ended writes."""
        process = self.process
        if process.turns == self.turn and process.busy_until > process.world.time:
            for block, first, after in self.written:
                self.cells[block].reshape(-1, self.size)[:, first:after] ^= OTHER


def take_over(files: tuple[int, int]) -> KeptPool:
    """Open the files of a worker that begins, with what has befallen them since its predecessor."""
    # The pool closes both; a process's own descriptors are closed with it.
    blocks, records = map(os.dup, files)
    chance = HERE.world.random("kept memory")
    if os.fstat(records).st_size and chance.random() < CHANGED:
        change = chance.choice((damage, damage, replace_all))
        HERE.world.note("kept memory", change.__name__)
        change(blocks, records, chance)
    return KeptPool(blocks, records, IDENTITY)


def damage(blocks: int, records: int, chance: random.Random) -> None:
    """Change some bytes of blocks and of records."""
    for file, start in ((blocks, POOL_HEADER_BYTES), (records, HEADER_BYTES)):
        size = os.fstat(file).st_size
        for _ in range(PLACES):
            os.pwrite(file, chance.randbytes(1), chance.randrange(start, size))


def replace_all(blocks: int, records: int, chance: random.Random) -> None:
    """Have the memory be that of another model, all of it as it should be there."""
    count = (os.fstat(records).st_size - HEADER_BYTES) // RECORD_BYTES
    found = BlockRecords(records, count)
    with mmap.mmap(blocks, os.fstat(blocks).st_size) as memory:
        pool = np.frombuffer(memory, np.uint8, offset=POOL_HEADER_BYTES).reshape(count, -1)
        pool ^= OTHER
        words = pool.shape[1] // 8
        for record in found.all():
            (digest,) = block_digests(pool, [record.block], digest_weights(words, words))
            found.write(record.block, digest, record.keys)
        del pool
    found.declare(FOREIGN)


def recording_clock() -> float:
    """Return the time to a recorder, which takes some."""
    HERE.world.spend(RECORDING)
    return HERE.world.now()
