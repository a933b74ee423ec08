# SPDX-License-Identifier: Apache-2.0
"""The memory of another process on this host, with the KV pool in it or with only its epoch cells."""

import mmap
import os
import select
from typing import Any

import numpy as np

from pontil.runtime.cache.storage import EPOCH_SLOTS, HEADER_BYTES, IDENTITY_BYTES, KVStorage
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.descriptor import num_blocks, part, secret, whole


class PeerPool:
    """A peer's pool with these KV heads, mapped read-only. The pidfd tells when its process has ended, even if its pid
    is used again."""

    def __init__(self, descriptor: dict[str, Any], kind: str, block_bytes: int, heads: range) -> None:
        descriptor = part(descriptor, kind)
        pid, fd, blocks = whole(descriptor, "pid"), whole(descriptor, "fd"), num_blocks(descriptor, block_bytes)
        identity = secret(descriptor, "identity", IDENTITY_BYTES)
        size = HEADER_BYTES + blocks * block_bytes
        self.pidfd = -1
        try:
            self.pidfd = os.pidfd_open(pid)
            opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self.close()
            raise TransferError(f"the peer's memory cannot be opened ({error.strerror}): is it on this host?") from None
        try:
            # A file that an earlier process used may be larger: it never shrinks, since who maps it would crash.
            if os.fstat(opened).st_size < size:
                raise TransferError("the peer's memory has another size than it said")
            self.map = mmap.mmap(opened, size, prot=mmap.PROT_READ)
            if self.map[HEADER_BYTES - IDENTITY_BYTES : HEADER_BYTES] != identity:
                raise TransferError("it is not this host's")
        except (OSError, ValueError, TransferError) as error:
            self.close()
            raise TransferError(f"the peer's memory cannot be mapped: {error}") from None
        finally:
            os.close(opened)
        self.num_blocks, self.heads = blocks, heads
        self.epochs = np.frombuffer(self.map, dtype=np.int64, count=EPOCH_SLOTS)
        self.blocks = np.frombuffer(self.map, dtype=np.uint8, offset=HEADER_BYTES).reshape(blocks, block_bytes)

    @property
    def ended(self) -> bool:
        """True once the peer's process has ended. poll, not select: a pidfd above 1023 must not be an error."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close the pidfd. The mapping itself ends with the last array over it."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def describe(storage: KVStorage) -> dict[str, Any]:
    """Return the fields by which PeerPool opens our memory."""
    return {
        "pid": os.getpid(),
        "fd": storage.fd,
        "identity": storage.identity.hex(),
        "blocks": storage.num_blocks,
        "block_bytes": storage.layout.block_bytes,
    }
