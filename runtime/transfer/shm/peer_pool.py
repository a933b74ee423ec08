# SPDX-License-Identifier: Apache-2.0
"""The memory of another process on this host, with the KV pool in it or with only its epoch cells."""

import mmap
import os
import select
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pontil.runtime.cache.storage import EPOCH_SLOTS, HEADER_BYTES, IDENTITY_BYTES, KVStorage
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.descriptor import num_blocks, part, secret, whole


class PeerMemory:
    """The memory of another process, mapped read-only. The pidfd tells when that process has ended, even if its pid is
    used again."""

    def __init__(self, pidfd: int, mapped: mmap.mmap | NDArray[np.uint8]) -> None:
        self.pidfd, self.mapped = pidfd, mapped

    @property
    def ended(self) -> bool:
        """True once the process has ended. poll, not select: a pidfd above 1023 must not be an error."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close the pidfd. The mapping itself ends with the last array over it."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def open_memory(descriptor: dict[str, Any], size: int) -> PeerMemory:
    """Open so many bytes of the memory that a process on this host described. Raises TransferError. KV of other
    processes is reached here only."""
    pid, fd = whole(descriptor, "pid"), whole(descriptor, "fd")
    identity = secret(descriptor, "identity", IDENTITY_BYTES)
    with ExitStack() as undo:
        try:
            pidfd = os.pidfd_open(pid)
            undo.callback(os.close, pidfd)
            memory_fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise TransferError(f"the peer's memory cannot be opened ({error.strerror}): is it on this host?") from None
        try:
            mapping = map_file(memory_fd, size, identity)
        except (OSError, ValueError, TransferError) as error:
            raise TransferError(f"the peer's memory cannot be mapped: {error}") from None
        finally:
            os.close(memory_fd)
        undo.pop_all()
    return PeerMemory(pidfd, mapping)


def map_file(memory_fd: int, size: int, identity: bytes) -> mmap.mmap:
    # A file that an earlier process used may be larger: it never shrinks, since who maps it would crash.
    if os.fstat(memory_fd).st_size < size:
        raise TransferError("the peer's memory has another size than it said")
    mapping = mmap.mmap(memory_fd, size, prot=mmap.PROT_READ)
    if mapping[HEADER_BYTES - IDENTITY_BYTES : HEADER_BYTES] != identity:
        raise TransferError("it is not this host's")
    return mapping


class PeerPool:
    """A peer's pool with these KV heads, which `readers` pulls may read."""

    def __init__(self, descriptor: dict[str, Any], kind: str, block_bytes: int, heads: range) -> None:
        descriptor, self.readers = part(descriptor, kind), 0
        self.num_blocks, self.heads = num_blocks(descriptor, block_bytes), heads
        self.host = open_memory(descriptor, HEADER_BYTES + self.num_blocks * block_bytes)
        mapping = self.host.mapped
        self.epochs = np.frombuffer(mapping, dtype=np.int64, count=EPOCH_SLOTS)
        blocks = np.frombuffer(mapping, np.uint8, self.num_blocks * block_bytes, HEADER_BYTES)
        self.blocks = blocks.reshape(self.num_blocks, block_bytes)

    @property
    def ended(self) -> bool:
        """True once the peer's process has ended."""
        return self.host.ended

    def close(self) -> None:
        self.host.close()


def describe(storage: KVStorage) -> dict[str, Any]:
    """Return the fields by which PeerPool opens our memory."""
    return {
        "pid": os.getpid(),
        "fd": storage.fd,
        "identity": storage.identity.hex(),
        "blocks": storage.num_blocks,
        "block_bytes": storage.layout.block_bytes,
    }
