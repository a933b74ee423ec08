# SPDX-License-Identifier: Apache-2.0
"""The records of a follower's part of a pool that outlives its worker.

The driver has the prefix index and decides which blocks are recorded; each rank digests its own part. A tag, made of a
block's key, tells whether two ranks' records are about the same content.
"""

import struct
from collections.abc import Sequence

from pontil.runtime.cache.block_records import BlockRecords
from pontil.runtime.cache.prefix import KEY_BYTES, Key
from pontil.runtime.cache.storage import KVStorage

TAG = struct.Struct("<q")
# Block and tag.
LEFT = struct.Struct("<qq")


class FollowerRecords:
    """Carries out the driver's orders about records. `left`: the blocks of an earlier process that are whole."""

    def __init__(self, records: BlockRecords, storage: KVStorage) -> None:
        self.records, self.storage = records, storage
        records_by_block = {record.block: record for record in records.all()}
        self.left: dict[int, int] = {}
        # Checked now, by all ranks at the same time: later the driver would have to wait for them.
        for block, record in records_by_block.items():
            if storage.digests([block]) == [record.digest]:
                self.left[block] = tag_of(record.keys[0])
        lost_blocks = [block for block in range(records.num_blocks) if block not in self.left]
        for block in lost_blocks:
            records.clear(block)
        storage.erase(lost_blocks)

    def told(self) -> bytes:
        """Return `left` as a message carries it."""
        return b"".join(LEFT.pack(block, tag) for block, tag in self.left.items())

    def obey(self, recorded: Sequence[Sequence[int]], dropped: Sequence[int]) -> None:
        """Record blocks [block, tag], then drop the records of others."""
        for block, tag in recorded:
            key = TAG.pack(tag).ljust(KEY_BYTES, b"\0")
            self.records.write(block, self.storage.digests([block])[0], (key,))
        for block in dropped:
            self.records.clear(block)


def tag_of(key: Key) -> int:
    return int(TAG.unpack_from(key)[0])


def left_in(told: bytes) -> dict[int, int]:
    """Return the tags of blocks that a follower says it has. A message that cannot be read tells of none."""
    return dict(LEFT.iter_unpack(told)) if len(told) % LEFT.size == 0 else {}
