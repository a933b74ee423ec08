# SPDX-License-Identifier: Apache-2.0
"""Pulling from a worker on the same host by mapping its pool read-only through /proc.

"The same host" means exactly that the peer's memory could be opened. One thread copies; the engine's step never waits.
"""

import mmap
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pontil.runtime.cache.storage import EPOCH_BYTES, EPOCH_SLOTS, KVStorage
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Done, Pair

JOIN_TIMEOUT = 5.0


class PeerPool:
    """A peer's pool, mapped read-only. The pidfd tells when its process has ended, whoever has its pid by then."""

    def __init__(self, descriptor: dict[str, Any], block_bytes: int) -> None:
        pid, fd, blocks = (whole(descriptor, name) for name in ("pid", "fd", "blocks"))
        if descriptor.get("block_bytes") != block_bytes:
            raise TransferError("the peer's blocks have another size than ours")
        size = EPOCH_BYTES + blocks * block_bytes
        self.pidfd = -1
        try:
            self.pidfd = os.pidfd_open(pid)
            opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise TransferError(f"the peer's memory cannot be opened ({error.strerror}): is it on this host?") from None
        try:
            if os.fstat(opened).st_size != size:
                raise TransferError("the peer's memory has another size than it said")
            self.map = mmap.mmap(opened, size, prot=mmap.PROT_READ)
        except (OSError, ValueError, TransferError) as error:
            self.close()
            raise TransferError(f"the peer's memory cannot be mapped: {error}") from None
        finally:
            os.close(opened)
        self.num_blocks = blocks
        self.epochs = np.frombuffer(self.map, dtype=np.int64, count=EPOCH_SLOTS)
        self.blocks = np.frombuffer(self.map, dtype=np.uint8, offset=EPOCH_BYTES).reshape(blocks, block_bytes)

    @property
    def ended(self) -> bool:
        """poll, not select: a pidfd above 1023 must not be an error."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """The mapping itself goes when the last array over it does."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def whole(descriptor: dict[str, Any], name: str) -> int:
    value = descriptor.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TransferError(f"the peer's descriptor has no usable {name!r}")
    return value


@dataclass(frozen=True, slots=True)
class Job:
    ticket: int
    peer: PeerPool
    pairs: tuple[Pair, ...]
    slot: int


class OverShm:
    """The connector. `wake` is called, from the copying thread, whenever `poll` has something new."""

    def __init__(self, storage: KVStorage, wake: Callable[[], None]) -> None:
        self.storage, self.wake = storage, wake
        self.target = storage.shared.numpy()
        self.peers: dict[str, PeerPool] = {}
        self.next_ticket = 1
        self.cancelled: set[int] = set()
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.copy_until_closed, name="over-shm", daemon=True)
        self.thread.start()

    def register(self) -> dict[str, Any]:
        return {
            "kind": "shm",
            "pid": os.getpid(),
            "fd": self.storage.fd,
            "blocks": self.storage.num_blocks,
            "block_bytes": self.storage.layout.block_bytes,
        }

    def attach(self, peer: str, descriptor: dict[str, Any]) -> None:
        if peer not in self.peers:
            self.peers[peer] = PeerPool(descriptor, self.storage.layout.block_bytes)

    def detach(self, peer: str) -> None:
        pool = self.peers.pop(peer, None)
        if pool is not None:
            pool.close()

    def lost(self) -> list[str]:
        return [peer for peer, pool in self.peers.items() if pool.ended]

    def pull(self, peer: str, pairs: Sequence[Pair], slot: int) -> int:
        ticket, self.next_ticket = self.next_ticket, self.next_ticket + 1
        pool = self.peers.get(peer)
        if pool is None:
            self.finish(Done(ticket, "the peer is gone", None, 0, 0.0))
        elif not 0 <= slot < EPOCH_SLOTS or any(not 0 < theirs < pool.num_blocks for theirs, _ in pairs):
            self.finish(Done(ticket, "the peer announced blocks that it does not have", None, 0, 0.0))
        else:
            self.jobs.put(Job(ticket, pool, tuple(pairs), slot))
        return ticket

    def poll(self) -> list[Done]:
        done = []
        while not self.done.empty():
            done.append(self.done.get())
            self.cancelled.discard(done[-1].ticket)
        return done

    def cancel(self, ticket: int) -> None:
        self.cancelled.add(ticket)

    def close(self) -> None:
        self.stopping.set()
        self.jobs.put(None)
        self.thread.join(JOIN_TIMEOUT)
        for peer in list(self.peers):
            self.detach(peer)

    def copy_until_closed(self) -> None:
        while (job := self.jobs.get()) is not None and not self.stopping.is_set():
            self.finish(self.copy(job))

    def copy(self, job: Job) -> Done:
        """One pull. numpy lets go of the interpreter lock while it copies."""
        if job.ticket in self.cancelled:
            return Done(job.ticket, "cancelled", None, 0, 0.0)
        begun = time.monotonic()
        for theirs, ours, count in runs(job.pairs):
            self.target[ours : ours + count] = job.peer.blocks[theirs : theirs + count]
        epoch = int(job.peer.epochs[job.slot])
        moved = len(job.pairs) * self.storage.layout.block_bytes
        return Done(job.ticket, None, epoch, moved, time.monotonic() - begun)

    def finish(self, done: Done) -> None:
        self.done.put(done)
        self.wake()


def runs(pairs: Sequence[Pair]) -> list[tuple[int, int, int]]:
    """Neighbours on both sides merged: (theirs, ours, count)."""
    merged: list[tuple[int, int, int]] = []
    for theirs, ours in pairs:
        if merged and merged[-1][0] + merged[-1][2] == theirs and merged[-1][1] + merged[-1][2] == ours:
            merged[-1] = (merged[-1][0], merged[-1][1], merged[-1][2] + 1)
        else:
            merged.append((theirs, ours, 1))
    return merged
