# SPDX-License-Identifier: Apache-2.0
"""The connector for workers on any host: TCP on plain sockets, the reference. The wire format is in tcp_frames.

Each attached peer has a thread that owns the connection to it, so a slow peer delays no other. Blocks are received
straight into the pool. A pull that is cancelled or fails closes the connection; the next one opens another.
"""

import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.errors import TransferError
from pontil.runtime.threads import GuardedThread, ThreadFailures
from pontil.runtime.transfer.connector import FAULT, PLAIN_OPTIONS, ConnectorOptions, Pull, PullResult, objection, runs
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.transfer.tcp.channel import BrokenStream, TcpAddress, TcpChannel
from pontil.runtime.transfer.tcp.frames import ANSWER, CROWDED, EPOCH, FULL, READ, request
from pontil.runtime.transfer.tcp.server import TcpServer

JOIN_TIMEOUT = 5.0
# Seconds between attempts to connect: a process that ends may close its connections before its port.
TRIALS = (0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class TcpPull:
    """A pull as runs of blocks (first block of theirs, first of ours, count), the grant to show, the KV heads if they
    are not all that both pools have, and the moment on our device after which its blocks may be written."""

    pull: Pull
    runs: list[tuple[int, int, int]]
    shown: Grant | None = None
    heads: range | None = None
    mark: Any = None


class PeerStream:
    """The connection to one peer, and the thread that owns it. The engine's thread queues and cancels pulls and wakes
    the stream's thread, which calls `finish` once for each pull."""

    def __init__(
        self,
        address: TcpAddress,
        storage: KVStorage,
        finish: Callable[[Pull, PullResult], None],
        deadlines: Deadlines,
        seed: bytes | None = None,
        failures: ThreadFailures | None = None,
    ) -> None:
        self.address, self.storage = address, storage
        self.target = storage.shared.numpy().reshape(-1).data
        self.finish, self.deadlines = finish, deadlines
        self.jobs: deque[TcpPull] = deque()
        self.lock = threading.Lock()  # held to take a job out of the queue
        self.leaving, self.closing = threading.Event(), threading.Event()
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The rest belongs to the stream's thread. An exchange without a current job is a trial.
        self.current: TcpPull | None = None
        self.may_try = True
        self.channel = TcpChannel(address, deadlines.kv_stall_timeout, seed, self.wait, self.check)
        self.thread = GuardedThread(self.run, "tcp-connector", failures, self.mend)
        self.thread.start()

    def give(self, job: TcpPull) -> None:
        self.jobs.append(job)
        self.ring()

    @property
    def received(self) -> int:
        return self.channel.received

    def cancel(self, pull: Pull) -> None:
        """Cancel a pull: a queued one ends at once, the current one as soon as its thread notices."""
        with self.lock:
            waiting = next((job for job in self.jobs if job.pull is pull), None)
            if waiting is not None:
                self.jobs.remove(waiting)
        if waiting is not None:
            self.finish(pull, PullResult("cancelled"))
        else:
            self.ring()

    def leave(self) -> None:
        """End after the jobs queued so far."""
        self.leaving.set()
        self.ring()

    def close(self) -> None:
        """End at once. Unfinished pulls end with an error."""
        self.closing.set()
        self.leave()

    def ring(self) -> None:
        os.eventfd_write(self.wakeup, 1)

    def join(self, timeout: float) -> bool:
        """Return whether the thread has ended; its wake-up descriptor is closed then."""
        self.thread.join(timeout)
        if self.thread.is_alive():
            return False
        os.close(self.wakeup)
        return True

    def run(self) -> None:
        self.try_out()
        while (job := self.next_job()) is not None:
            self.current = job
            self.finish(job.pull, self.pull(job))
            self.current = None
        self.channel.close()

    def mend(self, error: BaseException) -> None:
        """End the current pull with an error after an exception in the stream's thread."""
        job, self.current = self.current, None
        self.channel.close()
        if job is not None:
            self.finish(job.pull, PullResult(FAULT.format(error)))

    def next_job(self) -> TcpPull | None:
        """Wait for a job and watch the connection. Return None once there will be no more."""
        while (job := self.take_job()) is None:
            if self.leaving.is_set():
                return None
            if self.wait(select.POLLIN | select.POLLRDHUP, None):
                self.channel.close()  # nothing was asked, so the peer has closed
                if self.may_try:
                    self.may_try = False
                    self.try_out()
        return job

    def take_job(self) -> TcpPull | None:
        with self.lock:
            return self.jobs.popleft() if self.jobs else None

    def try_out(self) -> None:
        """Connect ahead of the first pull, and find out why a peer closed: `refused` then says that it is gone. At most
        once between pulls, or a peer that always closes would keep the thread busy; a waiting pull goes first."""
        for pause in TRIALS:
            try:
                self.exchange([], 0)
                return
            except TransferError:
                self.channel.close()
            if self.channel.refused or self.jobs or self.leaving.is_set():
                return
            self.wait(0, time.monotonic() + pause)

    def pull(self, job: TcpPull) -> PullResult:
        start_time = time.monotonic()
        try:
            epoch, digests = self.exchange_again(job)
        except TransferError as error:
            self.channel.close()
            return PullResult(str(error), seconds=time.monotonic() - start_time)
        self.may_try = True
        blocks = [block for _, ours, length in job.runs for block in range(ours, ours + length)]
        self.storage.land(blocks, job.heads, job.mark)
        moved_bytes = self.size_of(job.heads) * sum(length for _, _, length in job.runs)
        return PullResult(None, epoch, moved_bytes, time.monotonic() - start_time, digests)

    def exchange_again(self, job: TcpPull) -> tuple[int, list[int]]:
        """Make an exchange, repeated on a new connection if the existing one has broken."""
        had_one = self.channel.socket is not None
        try:
            return self.exchange(job.runs, job.pull.slot, job.shown, job.heads)
        except BrokenStream:
            if not had_one:
                raise
            self.channel.close()
            return self.exchange(job.runs, job.pull.slot, job.shown, job.heads)

    def exchange(
        self, wanted: list[tuple[int, int, int]], slot: int, shown: Grant | None = None, heads: range | None = None
    ) -> tuple[int, list[int]]:
        """Send a request and receive the blocks. Return the cell and the digests. Raises TransferError, after which the
        connection must not be used."""
        # The time limit of a pull that makes progress.
        channel = self.channel
        channel.deadline = time.monotonic() + self.deadlines.kv_transfer_timeout
        self.check(channel.deadline)
        if channel.socket is None:
            channel.connect()
        their_runs = [(theirs, length) for theirs, _, length in wanted]
        channel.send(request(self.address.token, slot, their_runs, shown, heads))
        status, size = ANSWER.unpack(channel.receive(bytearray(ANSWER.size)))
        if status == FULL:
            raise TransferError(CROWDED)
        if status != READ or size != self.size_of(heads) * sum(length for _, _, length in wanted):
            raise TransferError("the peer did not give the blocks that it announced")
        receive = self.receiver_of(heads)
        digests = [receive(block) for _, ours, length in wanted for block in range(ours, ours + length)]
        return int(EPOCH.unpack(channel.receive(bytearray(EPOCH.size)))[0]), digests

    def size_of(self, heads: range | None) -> int:
        return self.storage.layout.block_bytes if heads is None else self.storage.slice_bytes(heads)

    def receiver_of(self, heads: range | None) -> Callable[[int], int]:
        """Return a function that receives the next block, or its heads, and returns the digest, computed while the data
        is in the cache."""
        size = self.size_of(heads)

        def receive_block(block: int) -> int:
            self.channel.receive(self.target[block * size : (block + 1) * size])
            return self.storage.digests([block])[0]

        if heads is None:
            return receive_block
        slices = self.storage.slices(self.storage.bytes, self.storage.layout.kv_heads, heads)
        came = np.empty(slices.shape[1:], np.uint8)

        def receive_slice(block: int) -> int:
            self.channel.receive(came.reshape(-1).data)
            slices[block] = came
            return self.storage.digests([block], heads)[0]

        return receive_slice

    def check(self, until: float) -> None:
        """Raise TransferError when the current exchange must end: closed, cancelled or too late."""
        if self.closing.is_set():
            raise TransferError("this worker is closing")
        if self.current is None and (self.jobs or self.leaving.is_set()):
            raise TransferError("a trial gives way")
        if self.current is not None and self.current.pull.is_cancelled:
            raise TransferError("cancelled")
        if time.monotonic() >= until:
            raise TransferError("the peer is too slow")

    def wait(self, events: int, until: float | None) -> bool:
        """Return whether the socket is ready, before the wake-up and the time limit."""
        poller = select.poll()
        poller.register(self.wakeup, select.POLLIN)
        if self.channel.socket is not None:
            poller.register(self.channel.socket, events)
        timeout = None if until is None else max(0.0, until - time.monotonic()) * 1000
        ready = [source for source, _ in poller.poll(timeout)]
        if self.wakeup in ready:
            os.eventfd_read(self.wakeup)
        return any(source != self.wakeup for source in ready)


class TcpConnector:
    """The TCP connector. `wake` is called, from a stream's thread, whenever `poll` has something new. With a guard it
    speaks only to peers with the same keys."""

    def __init__(self, storage: KVStorage, wake: Callable[[], None], options: ConnectorOptions = PLAIN_OPTIONS) -> None:
        self.storage, self.wake, self.deadlines = storage, wake, options.deadlines
        self.seed = None if options.guard is None else options.guard.seed
        self.failures = options.failures
        self.server = TcpServer(storage, options)
        self.streams: dict[str, PeerStream] = {}
        # The streams of detached peers, whose pulls go on.
        self.ending: list[PeerStream] = []
        self.done: queue.SimpleQueue[Pull] = queue.SimpleQueue()

    def register(self) -> dict[str, Any]:
        return self.server.descriptor()

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        if peer not in self.streams:
            heads = heads or self.storage.layout.kv_heads
            address = TcpAddress.read(descriptor, self.storage.slice_bytes(heads), heads)
            self.streams[peer] = PeerStream(
                address, self.storage, self.finish, self.deadlines, self.seed, self.failures
            )

    def detach(self, peer: str) -> None:
        stream = self.streams.pop(peer, None)
        if stream is not None:
            stream.leave()
            self.ending.append(stream)

    def lost(self) -> list[str]:
        return [peer for peer, stream in self.streams.items() if stream.channel.refused]

    def pull(self, pull: Pull) -> None:
        kv_heads, stream = self.storage.layout.kv_heads, self.streams.get(pull.peer)
        error = objection(pull, None if stream is None else stream.address, kv_heads)
        if stream is None or error is not None:
            self.finish(pull, PullResult(error))
        else:
            pull.reader, heads = stream, pull.heads or kv_heads
            subset = None if stream.address.heads == heads == kv_heads else heads
            stream.give(TcpPull(pull, runs(pull.pairs), pull.shown if self.seed else None, subset, self.storage.mark()))

    def staged(self, peer: str) -> bool:
        return True

    def poll(self) -> list[Pull]:
        pulls = []
        while not self.done.empty():
            pulls.append(self.done.get())
        self.ending = [stream for stream in self.ending if not stream.join(0.0)]
        return pulls

    def close(self) -> None:
        for peer in list(self.streams):
            self.detach(peer)
        for stream in self.ending:
            stream.close()
        deadline = time.monotonic() + JOIN_TIMEOUT
        self.ending = [stream for stream in self.ending if not stream.join(max(0.0, deadline - time.monotonic()))]
        self.server.close()

    def finish(self, pull: Pull, result: PullResult) -> None:
        pull.result = result
        self.done.put(pull)
        self.wake()
