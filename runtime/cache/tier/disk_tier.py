# SPDX-License-Identifier: Apache-2.0
"""A tier on a local disk, which outlives the process.

Its index file has a header, then one record for each slot of the file of blocks. Both have 64 bytes, so that none lies
in two sectors. The header names the model, the layout and the sizes. A record has the key, the digest, and a number
that is higher in later records; then a hash of these, of the slot and of the header. So a record that was written in
part, for another slot or for another model is none. Zeros are none either.
"""

import ctypes
import errno
import fcntl
import hashlib
import logging
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pontil.runtime.cache.prefix import KEY_BYTES, Key
from pontil.runtime.cache.tier.slot_entries import SlotEntries
from pontil.runtime.cache.tier.tier import Block

IN_USE = "another process uses it"


def open_folder(path: Path) -> int:
    """Make a folder if need be, closed to others, and return its descriptor. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.mkdir(mode=0o700, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"{path} belongs to another user")
        os.fchmod(folder, 0o700)
    except OSError:
        os.close(folder)
        raise
    return folder


def open_file(folder: int, name: str) -> int:
    """Open a file of the folder to be read and written, and return its descriptor. Raises OSError."""
    # A pipe of that name must not block.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{name} is no regular file")
    return descriptor


def lock(file: int) -> None:
    """Lock a file until its descriptor is closed. Raises OSError if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(errno.EWOULDBLOCK, IN_USE) from None


def allocate(file: int, size: int) -> None:
    """Reserve so many bytes of the disk for a file. Where the file system cannot, the file only gets that length.
    Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.fallocate(file, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EOPNOTSUPP, errno.ENOSYS):
        raise OSError(code, os.strerror(code))
    os.ftruncate(file, size)


logger = logging.getLogger("pontil.worker")

# Slots begin on pages.
PAGE = 4096
# The index is read at start and kept in memory, so it is bounded: a second of reading.
MOST_SLOTS = 1 << 20
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
    digest = hashlib.sha256(identity.encode()).digest()
    return HEADER.pack(MAGIC, VERSION, 0, block_bytes, slots, digest)


def write_record(header: bytes, record: DiskRecord) -> bytes:
    body = RECORD.pack(record.key, record.digest, record.number)
    return body + seal(header, record.slot, body)


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


def slot_bytes_of(block_bytes: int) -> int:
    """Return the bytes of a slot for blocks of so many."""
    return -(-block_bytes // PAGE) * PAGE


def slots_of(size: int, block_bytes: int) -> int:
    """Return how many blocks of so many bytes a tier of `size` bytes has."""
    return min(MOST_SLOTS, size // (slot_bytes_of(block_bytes) + RECORD_BYTES))


class DiskTier(SlotEntries):
    """A KVTier of `size` bytes in the folder `name` under `path`: a file of slots and an index file, locked. What was
    stored by an earlier process is here again, if it had the same `identity`: the model, the layout of a block and
    everything else on which its bytes depend. Raises OSError.

    Whenever the process ends, a record is written after its block and removed before its slot is used again; what the
    system wrote in another order when the machine failed shows in the digest.
    """

    def __init__(self, path: str | Path, name: str, size: int, block_bytes: int, identity: str) -> None:
        self.name, self.block_bytes = "disk", block_bytes
        self.slot_bytes = slot_bytes_of(block_bytes)
        super().__init__(slots_of(size, block_bytes))
        self.path = Path(path) / name.replace(":", "-")
        self.header = make_header(identity, block_bytes, self.capacity)
        self.number = 0
        with ExitStack() as stack:
            self.folder = open_folder(self.path)
            stack.callback(os.close, self.folder)
            self.index = open_file(self.folder, "index")
            stack.callback(os.close, self.index)
            lock(self.index)
            self.blocks = open_file(self.folder, "blocks")
            stack.callback(os.close, self.blocks)
            self.begin()
            self.opened = stack.pop_all()

    def begin(self) -> None:
        """Read the index, or begin a new one where it is that of another model or size."""
        if os.pread(self.index, RECORD_BYTES, 0) != self.header:
            if os.fstat(self.index).st_size:
                logger.warning(
                    "the KV cache in %s is of another model, type, size or version: it begins empty", self.path
                )
            os.ftruncate(self.index, 0)
            os.ftruncate(self.blocks, 0)
            write(self.index, self.header, 0)
        allocate(self.blocks, self.capacity * self.slot_bytes)
        allocate(self.index, (self.capacity + 1) * RECORD_BYTES)
        data = os.pread(self.index, self.capacity * RECORD_BYTES, RECORD_BYTES)
        # Of two records with one key the later one is written last.
        for record in sorted(read_records(self.header, data), key=lambda record: record.number):
            self.entries.pop(record.key, None)
            self.entries[record.key] = record.slot, record.digest
            self.number = record.number
        used_slots = {slot for slot, _ in self.entries.values()}
        self.free = [slot for slot in range(self.capacity - 1, -1, -1) if slot not in used_slots]

    def put(self, key: Key, block: Block, digest: int) -> None:
        assert key not in self.entries
        slot = self.free[-1]
        write(self.blocks, block.data, slot * self.slot_bytes)
        self.number += 1
        self.record(slot, write_record(self.header, DiskRecord(slot, key, digest, self.number)))
        self.free.pop()
        self.entries[key] = slot, digest

    def get(self, key: Key, into: Block) -> int | None:
        entry = self.entries.get(key)
        if entry is None:
            return None
        slot, digest = entry
        return digest if os.preadv(self.blocks, [into.data], slot * self.slot_bytes) == len(into) else None

    def drop(self, key: Key) -> None:
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.record(entry[0], NOTHING)
            self.free.append(entry[0])

    def record(self, slot: int, record: bytes) -> None:
        write(self.index, record, (slot + 1) * RECORD_BYTES)

    def probe(self, count: int, into: Block) -> float:
        """Read a file beside the tier's, after it has left the memory of the system."""
        file = open_file(self.folder, "probe")
        try:
            os.unlink("probe", dir_fd=self.folder)
            for place in range(count):
                write(file, into.data, place * self.slot_bytes)
            os.fdatasync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            start_time = time.perf_counter()
            for place in range(count):
                os.preadv(file, [into.data], place * self.slot_bytes)
            return time.perf_counter() - start_time
        finally:
            os.close(file)

    def close(self) -> None:
        self.opened.close()
        # Their numbers may be those of other files soon.
        self.folder = self.index = self.blocks = -1


def write(file: int, data: bytes | memoryview, at: int) -> None:
    """Write all of some bytes. Raises OSError."""
    remaining = memoryview(data).cast("B")
    while remaining:
        count = os.pwrite(file, remaining, at)
        if count == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        remaining, at = remaining[count:], at + count
