# SPDX-License-Identifier: Apache-2.0
"""The records of the blocks in a KV pool that outlives its worker: for each block the keys by which prompts find it,
and the digest of its bytes.

They are an anonymous file (memfd) of fixed-size records, which the launcher holds open as it does the pool. A record
counts only if its first word is the checksum of the others. The word is cleared before the block may be written and
written after all else, so whenever the process is killed, a record that counts was complete. That needs no fence: a
kill takes a thread between two of its instructions, every instruction before is carried out and none after it, and
the reader begins when all threads have ended. Bytes that were damaged otherwise have another digest.
"""

import hashlib
import mmap
import os
import struct
from dataclasses import dataclass

from pontil.runtime.cache.prefix import KEY_BYTES, Key

# The first word of the file; the last two characters are the version of this format.
MAGIC = b"pontkv01"
HEADER = struct.Struct("<8sQ32s8s")
HEADER_BYTES = 64
# Checksum, order of last use, digest, keys.
RECORD = struct.Struct(f"<8sqq{KEY_BYTES}s{KEY_BYTES}s")
USED = struct.Struct("<q")
CONTENT = struct.Struct(f"<q{KEY_BYTES}s{KEY_BYTES}s")
RECORD_BYTES = 64
MOST_KEYS = 2
CHECK_BYTES = 8
CONTENT_AT = CHECK_BYTES + USED.size
NOTHING = bytes(CHECK_BYTES)
NO_KEY = bytes(KEY_BYTES)
# Far more blocks than any pool has: a larger number is damage.
MOST_BLOCKS = 1 << 32


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """A block with the keys of its content. `used` orders blocks by their last use. It has no checksum: damage to it
    only changes what is evicted first."""

    block: int
    used: int
    digest: int
    keys: tuple[Key, ...]


class BlockRecords:
    """The records of `num_blocks` blocks. `identity`, 32 bytes, stands for all that the bytes of a block depend on.

    `renew` makes the file empty, and `declare` makes it valid once the pool is prepared. Not thread-safe: the engine's
    thread owns it.
    """

    def __init__(self, fd: int, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.map = mmap.mmap(fd, size_of(num_blocks))

    @classmethod
    def renew(cls, fd: int, num_blocks: int) -> "BlockRecords":
        """Return empty records in this file, which is nothing until `declare`."""
        os.ftruncate(fd, 0)
        os.ftruncate(fd, size_of(num_blocks))
        return cls(fd, num_blocks)

    @classmethod
    def kept(cls, fd: int, identity: bytes) -> "BlockRecords | None":
        """Return the records that an earlier process left in this file, or None if there are none with this
        identity."""
        size = os.fstat(fd).st_size
        head = os.pread(fd, HEADER.size, 0)
        if size < HEADER_BYTES or len(head) < HEADER.size:
            return None
        magic, num_blocks, owner, check = HEADER.unpack(head)
        intact = (magic, owner, check) == (MAGIC, identity, checksum(head[:-CHECK_BYTES]))
        return cls(fd, num_blocks) if intact and num_blocks < MOST_BLOCKS and size == size_of(num_blocks) else None

    def declare(self, identity: bytes) -> None:
        head = struct.pack("<8sQ32s", MAGIC, self.num_blocks, identity)
        self.map[: HEADER.size] = head + checksum(head)

    def write(self, block: int, digest: int, keys: tuple[Key, ...]) -> None:
        """Record a block whose bytes stay as they are until `clear`. Its last use stays."""
        self.clear(block)
        first, second = (*keys[:MOST_KEYS], NO_KEY)[:MOST_KEYS]
        CONTENT.pack_into(self.map, self.place(block) + CONTENT_AT, digest, first, second)
        self.check(block, check_of(block, digest, first, second))

    def has(self, block: int) -> bool:
        """Return whether a block has a record, whether or not that counts."""
        place = self.place(block)
        return self.map[place : place + CHECK_BYTES] != NOTHING

    def clear(self, block: int) -> None:
        self.check(block, NOTHING)

    def check(self, block: int, word: bytes) -> None:
        place = self.place(block)
        self.map[place : place + CHECK_BYTES] = word

    def touch(self, block: int, used: int) -> None:
        USED.pack_into(self.map, self.place(block) + CHECK_BYTES, used)

    def read(self, block: int) -> BlockRecord | None:
        """Return the record of a block, or None if it has none that counts."""
        check, last_use, digest, first, second = RECORD.unpack_from(self.map, self.place(block))
        if check == NOTHING or check != check_of(block, digest, first, second):
            return None
        return BlockRecord(block, last_use, digest, (first,) if second == NO_KEY else (first, second))

    def all(self) -> list[BlockRecord]:
        """Return all records that count, the block that was used last at the end. Block 0 has none."""
        records = [record for block in range(1, self.num_blocks) if (record := self.read(block)) is not None]
        return sorted(records, key=lambda record: record.used)

    def place(self, block: int) -> int:
        return HEADER_BYTES + block * RECORD_BYTES


def size_of(num_blocks: int) -> int:
    return HEADER_BYTES + num_blocks * RECORD_BYTES


def checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=CHECK_BYTES, person=b"records").digest()


def check_of(block: int, digest: int, first: Key, second: Key) -> bytes:
    """Return the checksum of a record. It is never zero, which is that of no record."""
    check = checksum(USED.pack(block) + CONTENT.pack(digest, first, second))
    return check if any(check) else b"\x01" + check[1:]
