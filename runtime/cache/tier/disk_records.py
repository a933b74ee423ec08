# SPDX-License-Identifier: Apache-2.0
"""The index file of a disk tier: a header, then one record for each slot of the file of blocks.

Both have 64 bytes, so that none lies in two sectors. The header names the model, the layout and the sizes. A record has
the key, the digest, and a number that is higher in later records; then a hash of these, of the slot and of the header.
So a record that was written in part, for another slot or for another model is none. Zeros are none either.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pontil.runtime.cache.prefix import KEY_BYTES, Key

RECORD_BYTES = 64
HEADER = struct.Struct("<8sIIQQ32s")
RECORD = struct.Struct(f"<{KEY_BYTES}sQQ")
HASH_BYTES = RECORD_BYTES - RECORD.size
SLOT = struct.Struct("<Q")
MAGIC, VERSION = b"pontilkv", 1
NOTHING = bytes(RECORD_BYTES)
# A digest is below this (gpu_ops/kv/digest.py).
DIGESTS = 1 << 63


@dataclass(frozen=True, slots=True)
class DiskRecord:
    slot: int
    key: Key
    digest: int
    number: int


def make_header(identity: str, block_bytes: int, slots: int) -> bytes:
    """Return the header of an index. `identity` names everything on which the bytes of a block depend."""
    named = hashlib.sha256(identity.encode()).digest()
    return HEADER.pack(MAGIC, VERSION, 0, block_bytes, slots, named)


def write_record(header: bytes, record: DiskRecord) -> bytes:
    said = RECORD.pack(record.key, record.digest, record.number)
    return said + seal(header, record.slot, said)


def read_records(header: bytes, data: bytes) -> Iterator[DiskRecord]:
    """Yield the records in the bytes behind the header; what is none is left out."""
    for slot in range(len(data) // RECORD_BYTES):
        record = data[slot * RECORD_BYTES : (slot + 1) * RECORD_BYTES]
        if record != NOTHING and record[RECORD.size :] == seal(header, slot, record[: RECORD.size]):
            key, digest, number = RECORD.unpack_from(record)
            if digest < DIGESTS:
                yield DiskRecord(slot, key, digest, number)


def seal(header: bytes, slot: int, said: bytes) -> bytes:
    return hashlib.blake2b(SLOT.pack(slot) + said, digest_size=HASH_BYTES, key=header).digest()
