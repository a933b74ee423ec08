# SPDX-License-Identifier: Apache-2.0
"""The common part of connectors that copy from memory which this process has opened: one thread copies, and the
engine's step never waits."""

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeVar

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.threads import JobThread, ThreadFailures
from pontil.runtime.transfer.connector import (
    FAULT,
    FOREIGN_BLOCKS,
    FOREIGN_HEADS,
    Pair,
    PullResult,
    can_be_read,
    is_within,
)
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.transfer.shm.peer_pool import PeerPool

AnyPool = TypeVar("AnyPool", bound=PeerPool)


@dataclass(frozen=True, slots=True)
class CopyJob(Generic[AnyPool]):
    """One pull. `mark` is the moment on our device after which its blocks may be written."""

    ticket: int
    peer: AnyPool
    pairs: tuple[Pair, ...]
    slot: int
    heads: range | None = None
    mark: Any = None


class CopyingConnector(ABC, Generic[AnyPool]):
    """A connector that opens peers' memory. `wake` is called, from the copying thread, whenever `poll` has something
    new. `tickets` are the numbers of its pulls, by default its own."""

    thread_name: str

    def __init__(
        self, storage: KVStorage, wake: Callable[[], None], tickets: Iterator[int] | None = None,
        failures: ThreadFailures | None = None,
    ) -> None:  # fmt: skip
        self.storage, self.wake, self.tickets = storage, wake, tickets or count(1)
        self.peers: dict[str, AnyPool] = {}
        # The pulls whose end `poll` has not returned, with the pool that each reads; those of them to end at once.
        self.reading: dict[int, AnyPool | None] = {}
        self.cancelled: set[int] = set()
        # Pools of detached peers that a pull may still read.
        self.leaving: list[AnyPool] = []
        self.done: queue.SimpleQueue[PullResult] = queue.SimpleQueue()
        self.copied = 0
        self.jobs: JobThread[CopyJob[AnyPool]] = JobThread(self.carry_out, self.thread_name, failures, self.mend)
        self.jobs.start()

    @abstractmethod
    def open_pool(self, descriptor: dict[str, Any], heads: range) -> AnyPool:
        """Open a peer's pool that holds these heads. Raise TransferError."""

    @abstractmethod
    def copy(self, job: CopyJob[AnyPool]) -> PullResult:
        """Copy the blocks of one pull, in the copying thread."""

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        if peer not in self.peers:
            self.peers[peer] = self.open_pool(descriptor, heads or self.storage.layout.kv_heads)

    def detach(self, peer: str) -> None:
        pool = self.peers.pop(peer, None)
        if pool is not None:
            self.leaving.append(pool)
            self.close_left()

    def close_left(self) -> None:
        """Close the pools of detached peers from which nothing is copied any more: a copy would read what is mapped
        there next, or crash."""
        used = {id(pool) for pool in self.reading.values()}
        for pool in [pool for pool in self.leaving if id(pool) not in used]:
            self.leaving.remove(pool)
            pool.close()

    def lost(self) -> list[str]:
        return [peer for peer, pool in self.peers.items() if pool.ended]

    def pull(
        self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None, heads: range | None = None
    ) -> int:
        ticket = next(self.tickets)
        pool = self.reading[ticket] = self.peers.get(peer)
        if pool is None:
            self.finish(PullResult(ticket, "the peer is gone", None, 0, 0.0))
        elif not can_be_read(pairs, slot, pool.num_blocks):
            self.finish(PullResult(ticket, FOREIGN_BLOCKS, None, 0, 0.0))
        elif not is_within(heads or self.storage.layout.kv_heads, pool.heads, self.storage.layout.kv_heads):
            self.finish(PullResult(ticket, FOREIGN_HEADS, None, 0, 0.0))
        else:
            self.jobs.put(CopyJob(ticket, pool, tuple(pairs), slot, heads, self.storage.mark()))
        return ticket

    def poll(self) -> list[PullResult]:
        done = []
        while not self.done.empty():
            done.append(self.done.get())
            self.cancelled.discard(done[-1].ticket)
            self.reading.pop(done[-1].ticket, None)
        if self.leaving:
            self.close_left()
        return done

    def received(self, peer: str) -> int:
        """Return the blocks received from all peers, since one thread serves them all."""
        return self.copied

    def cancel(self, ticket: int) -> None:
        if ticket in self.reading:
            self.cancelled.add(ticket)

    def must_end(self, job: CopyJob[AnyPool]) -> bool:
        return job.ticket in self.cancelled or self.jobs.closing.is_set()

    def close(self) -> None:
        if self.jobs.close():
            self.reading.clear()
        for peer in list(self.peers):
            self.detach(peer)
        self.close_left()

    def carry_out(self, job: CopyJob[AnyPool]) -> None:
        self.finish(self.copy(job))

    def mend(self, job: CopyJob[AnyPool], error: BaseException) -> None:
        """End a pull with an error after an exception in the copying thread."""
        self.finish(PullResult(job.ticket, FAULT.format(error), None, 0, 0.0))

    def finish(self, done: PullResult) -> None:
        self.done.put(done)
        self.wake()


def cancelled(ticket: int, begun: float) -> PullResult:
    return PullResult(ticket, "cancelled", None, 0, time.monotonic() - begun)
