# SPDX-License-Identifier: Apache-2.0
"""The common part of connectors that copy from memory which this process has opened: one thread copies, and the
engine's step never waits."""

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.threads import JobThread
from pontil.runtime.transfer.connector import FAULT, PLAIN_OPTIONS, ConnectorOptions, Pull, PullResult, objection
from pontil.runtime.transfer.shm.peer_pool import PeerPool

AnyPool = TypeVar("AnyPool", bound=PeerPool)


@dataclass(frozen=True, slots=True)
class CopyJob(Generic[AnyPool]):
    """A pull that can be copied. `mark` is the moment on our device after which its blocks may be written."""

    pull: Pull
    pool: AnyPool
    mark: Any = None


class CopyingConnector(ABC, Generic[AnyPool]):
    """A connector that opens peers' memory. `wake` is called, from the copying thread, whenever `poll` has something
    new. `received` are the blocks from all peers, since one thread serves them all."""

    thread_name: str

    def __init__(self, storage: KVStorage, wake: Callable[[], None], options: ConnectorOptions = PLAIN_OPTIONS) -> None:
        self.storage, self.wake = storage, wake
        self.peers: dict[str, AnyPool] = {}
        # Pools of detached peers that a pull may still read.
        self.leaving: list[AnyPool] = []
        # The pulls that ended, each with the pool that it no longer reads.
        self.done: queue.SimpleQueue[tuple[Pull, AnyPool | None]] = queue.SimpleQueue()
        self.received = 0
        self.jobs: JobThread[CopyJob[AnyPool]] = JobThread(
            self.carry_out, self.thread_name, options.failures, self.mend
        )
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
        for pool in [pool for pool in self.leaving if not pool.readers]:
            self.leaving.remove(pool)
            pool.close()

    def lost(self) -> list[str]:
        return [peer for peer, pool in self.peers.items() if pool.ended]

    def pull(self, pull: Pull) -> None:
        pull.reader, pool = self, self.peers.get(pull.peer)
        error = objection(pull, pool, self.storage.layout.kv_heads)
        if pool is None or error is not None:
            self.finish(pull, PullResult(error))
        else:
            pool.readers += 1
            self.jobs.put(CopyJob(pull, pool, self.storage.mark()))

    def poll(self) -> list[Pull]:
        pulls = []
        while not self.done.empty():
            pull, pool = self.done.get()
            pulls.append(pull)
            if pool is not None:
                pool.readers -= 1
        if self.leaving:
            self.close_left()
        return pulls

    def cancel(self, pull: Pull) -> None:
        """Do nothing: the thread looks at each pull between two pieces."""

    def must_end(self, job: CopyJob[AnyPool]) -> bool:
        return job.pull.is_cancelled or self.jobs.closing.is_set()

    def close(self) -> None:
        is_still = self.jobs.close()
        for peer in list(self.peers):
            self.detach(peer)
        for pool in self.leaving if is_still else ():
            pool.readers = 0
        self.close_left()

    def carry_out(self, job: CopyJob[AnyPool]) -> None:
        self.finish(job.pull, self.copy(job), job.pool)

    def mend(self, job: CopyJob[AnyPool], error: BaseException) -> None:
        """End a pull with an error after an exception in the copying thread."""
        self.finish(job.pull, PullResult(FAULT.format(error)), job.pool)

    def finish(self, pull: Pull, result: PullResult, pool: AnyPool | None = None) -> None:
        """End a pull, of which `pool` is the one that it has read."""
        pull.result = result
        self.done.put((pull, pool))
        self.wake()


def cancelled(begun: float) -> PullResult:
    return PullResult("cancelled", seconds=time.monotonic() - begun)
