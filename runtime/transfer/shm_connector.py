# SPDX-License-Identifier: Apache-2.0
"""The connector for workers on the same host: it maps the peer's pool read-only through /proc.

"The same host" means exactly that the peer's memory could be opened. One thread copies, and computes each block's
digest while the block is in the cache; the engine's step never waits.
"""

import mmap
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from pontil.runtime.cache.storage import EPOCH_SLOTS, HEADER_BYTES, IDENTITY_BYTES, KVStorage, epoch_after_data
from pontil.runtime.errors import TransferError
from pontil.runtime.threads import GuardedThread, ThreadFailures
from pontil.runtime.transfer.connector import (
    FAULT,
    FOREIGN_BLOCKS,
    FOREIGN_HEADS,
    ConnectorOptions,
    Pair,
    PullResult,
    can_be_read,
    is_within,
    pieces,
)
from pontil.runtime.transfer.descriptor import num_blocks, part, secret, whole
from pontil.runtime.transfer.grants import Grant

JOIN_TIMEOUT = 5.0
# Bytes to copy before computing their digest: they should still be in a core's own cache.
PIECE_BYTES = 512 << 10


class PeerPool:
    """A peer's pool with these KV heads, mapped read-only. The pidfd tells when its process has ended, even if its pid
    is used again."""

    def __init__(self, descriptor: dict[str, Any], block_bytes: int, heads: range) -> None:
        descriptor = part(descriptor, "shm")
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
            if os.fstat(opened).st_size != size:
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


@dataclass(frozen=True, slots=True)
class ShmPull:
    ticket: int
    peer: PeerPool
    pairs: tuple[Pair, ...]
    slot: int
    heads: range | None = None


class ShmConnector:
    """The shared-memory connector. `wake` is called, from the copying thread, whenever `poll` has something new.
    `tickets` are the numbers of its pulls, by default its own."""

    def __init__(
        self, storage: KVStorage, wake: Callable[[], None], tickets: Iterator[int] | None = None,
        failures: ThreadFailures | None = None,
    ) -> None:  # fmt: skip
        self.storage, self.wake, self.tickets = storage, wake, tickets or count(1)
        self.target = storage.shared.numpy()
        self.peers: dict[str, PeerPool] = {}
        self.cancelled: set[int] = set()
        self.jobs: queue.SimpleQueue[ShmPull | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[PullResult] = queue.SimpleQueue()
        self.copied = 0
        self.stopping = threading.Event()
        self.current: ShmPull | None = None
        self.thread = GuardedThread(self.copy_until_closed, "over-shm", failures, self.mend)
        self.thread.start()

    @classmethod
    def create(cls, storage: KVStorage, wake: Callable[[], None], options: ConnectorOptions) -> "ShmConnector":
        return cls(storage, wake, options.tickets, options.failures)

    def register(self) -> dict[str, Any]:
        return {
            "kind": "shm",
            "pid": os.getpid(),
            "fd": self.storage.fd,
            "identity": self.storage.identity.hex(),
            "blocks": self.storage.num_blocks,
            "block_bytes": self.storage.layout.block_bytes,
        }

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        if peer not in self.peers:
            heads = heads or self.storage.layout.kv_heads
            self.peers[peer] = PeerPool(descriptor, self.storage.slice_bytes(heads), heads)

    def detach(self, peer: str) -> None:
        pool = self.peers.pop(peer, None)
        if pool is not None:
            pool.close()

    def lost(self) -> list[str]:
        return [peer for peer, pool in self.peers.items() if pool.ended]

    def pull(
        self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None, heads: range | None = None
    ) -> int:
        ticket = next(self.tickets)
        pool = self.peers.get(peer)
        if pool is None:
            self.finish(PullResult(ticket, "the peer is gone", None, 0, 0.0))
        elif not can_be_read(pairs, slot, pool.num_blocks):
            self.finish(PullResult(ticket, FOREIGN_BLOCKS, None, 0, 0.0))
        elif not is_within(heads or self.storage.layout.kv_heads, pool.heads, self.storage.layout.kv_heads):
            self.finish(PullResult(ticket, FOREIGN_HEADS, None, 0, 0.0))
        else:
            self.jobs.put(ShmPull(ticket, pool, tuple(pairs), slot, heads))
        return ticket

    def poll(self) -> list[PullResult]:
        done = []
        while not self.done.empty():
            done.append(self.done.get())
            self.cancelled.discard(done[-1].ticket)
        return done

    def received(self, peer: str) -> int:
        """Return the bytes received from all peers, since one thread serves them all."""
        return self.copied

    def cancel(self, ticket: int) -> None:
        self.cancelled.add(ticket)

    def close(self) -> None:
        self.stopping.set()
        self.jobs.put(None)
        self.thread.join(JOIN_TIMEOUT)
        for peer in list(self.peers):
            self.detach(peer)

    def copy_until_closed(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.current = job
            self.finish(self.copy(job))
            self.current = None

    def mend(self, error: BaseException) -> None:
        """End the current pull with an error after an exception in the copying thread."""
        job, self.current = self.current, None
        if job is not None:
            self.finish(PullResult(job.ticket, FAULT.format(error), None, 0, 0.0))

    def copy(self, job: ShmPull) -> PullResult:
        """Copy the blocks of one pull. numpy releases the GIL while it copies and while it computes digests."""
        begun, digests = time.monotonic(), list[int]()
        held = self.storage.layout.kv_heads
        heads = job.heads or held
        source, target = job.peer.blocks, self.target
        if not job.peer.heads == heads == held:
            source = self.storage.slices(source, job.peer.heads, heads)
            target = self.storage.slices(target, held, heads)
        size = self.storage.slice_bytes(heads)
        for theirs, ours, length in pieces(job.pairs, max(1, PIECE_BYTES // size)):
            if job.ticket in self.cancelled or self.stopping.is_set():
                return PullResult(job.ticket, "cancelled", None, 0, time.monotonic() - begun)
            target[ours : ours + length] = source[theirs : theirs + length]
            digests += self.storage.digests(range(ours, ours + length), heads)
            self.copied += length
        epoch = epoch_after_data(job.peer.epochs, job.slot)
        return PullResult(job.ticket, None, epoch, len(job.pairs) * size, time.monotonic() - begun, digests)

    def finish(self, done: PullResult) -> None:
        self.done.put(done)
        self.wake()
