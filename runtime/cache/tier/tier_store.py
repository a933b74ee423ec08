# SPDX-License-Identifier: Apache-2.0
"""The thread that stores evicted blocks in tiers and reads them back into the pool."""

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from pontil.gpu_ops.kv.digest import block_digests
from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.cache.tier.chain import TierChain
from pontil.runtime.cache.tier.costs import TierCosts
from pontil.runtime.cache.tier.tier import Block
from pontil.runtime.cache.tier.tier_pins import PinResult
from pontil.runtime.threads import ThreadFailures, TurnThread

STAGING_BYTES = 32 << 20
LEAST_BLOCKS = 4


class StagingBuffers:
    """A fixed number of buffers of one block for those that were evicted. The engine's thread takes them, the storing
    thread gives them back, and has one more for a block that it reads.

    A block of a device is copied behind everything that was started there before, without waiting for it: the step that
    reuses the block is started after the copy. In the memory of a CPU the copy is made at once, and a block is read
    to its place. The memory that peers map (`KVStorage.shared`) is not touched where it is another one: it belongs to
    transfers.
    """

    def __init__(self, storage: KVStorage, size: int = STAGING_BYTES) -> None:
        self.storage = storage
        self.count = max(LEAST_BLOCKS, size // storage.layout.block_bytes)
        shape = (self.count + 1, storage.layout.block_bytes)
        self.buffers = torch.empty(shape, dtype=torch.uint8, pin_memory=storage.device.type == "cuda")
        self.rows = self.buffers.numpy()
        self.free = deque(range(self.count - 1, -1, -1))
        self.weights = storage.weights_of(len(storage.layout.kv_heads))

    def take(self, block: int) -> tuple[int, Any] | None:
        """Copy a block of the pool. Return the buffer's number and the moment when the copy is complete, or None where
        no buffer is free."""
        if not self.free:
            return None
        number = self.free.pop()
        if self.storage.staged:
            self.buffers[number].copy_(self.storage.own[block], non_blocking=True)
        else:
            self.rows[number] = self.storage.bytes[block]
        return number, self.storage.mark()

    def read(self, number: int, mark: Any) -> tuple[Block, int]:
        """Return the bytes in a buffer and their digest, once the copy is complete."""
        if self.storage.memory is not None:
            with self.storage.memory.after(mark):
                pass
        (digest,) = block_digests(self.rows, [number], self.weights)
        return self.rows[number], digest

    def target(self, block: int) -> Block:
        """Return the bytes into which a block is read that is to be in this place of the pool."""
        row: Block = self.rows[-1] if self.storage.staged else self.storage.bytes[block]
        return row

    def arrive(self, block: int, digest: int, mark: Any) -> bool:
        """Put what was read into its place, behind the mark, and return True if it has this digest. On return the copy
        is complete."""
        if block_digests(self.target(block)[None], [0], self.weights) != [digest]:
            return False
        if self.storage.memory is not None:
            with self.storage.memory.after(mark):
                self.storage.own[block].copy_(self.buffers[-1], non_blocking=True)
        return True

    def give_back(self, number: int) -> None:
        self.free.append(number)


THREAD = "kv-tier"
# Notes that a block was used, beyond which further ones are not kept: they change only which block leaves first.
MOST_TOUCHES = 1024


@dataclass(frozen=True, slots=True)
class TierRead:
    """A read of blocks, each with the place in the pool that it goes to. `mark` is the moment on the device after which
    these may be written."""

    ticket: int
    pairs: tuple[tuple[Key, int], ...]
    mark: Any = None


@dataclass(frozen=True, slots=True)
class TierResult:
    """The end of a read: the first `good` blocks are in the pool, and have the digests they were stored with. `seconds`
    has for each tier the time and the number of its blocks."""

    ticket: int
    good: int
    seconds: dict[str, tuple[float, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TierWrite:
    """A block to be stored, in the staging buffer `number`; with None it is there already, and was used. With a
    `ticket` it is to be pinned, too."""

    key: Key
    number: int | None = None
    mark: Any = None
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class TierUnpin:
    """A block whose pin ends."""

    key: Key


@dataclass(slots=True)
class TierCounts:
    """Blocks `stored`, `loaded`, `dropped` since the thread was behind, and `damaged`. Each field has one writing
    thread: the engine's for `dropped`, the storing thread for the others."""

    stored: int = 0
    loaded: int = 0
    dropped: int = 0
    damaged: int = 0


class TierStore:
    """The tiers as the engine's thread sees them. It calls everything but `turn`, and waits for nothing:
    blocks that cannot be copied at once because the thread is behind are dropped and counted. Reads go before writes.

    A block of the pool that is being read into belongs to the reader until `poll` returns the result. `wake` is called
    from the thread whenever `poll` or `pin_results` have something new.

    Pins are set and ended in the order of the calls; of a key nobody sets one that has one.
    """

    def __init__(
        self,
        storage: KVStorage,
        chain: TierChain,
        costs: TierCosts,
        wake: Callable[[], None] = lambda: None,
        failures: ThreadFailures | None = None,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        self.storage, self.chain, self.costs, self.wake = storage, chain, costs, wake
        self.staging = StagingBuffers(storage, staging_bytes)
        self.counts = TierCounts()
        self.tickets = count(1)
        self.reads: deque[TierRead] = deque()
        self.writes: deque[TierWrite | TierUnpin] = deque()
        self.done: queue.SimpleQueue[TierResult] = queue.SimpleQueue()
        self.current: TierRead | TierWrite | TierUnpin | None = None
        self.thread = TurnThread(self.turn, THREAD, failures, self.mend)
        self.thread.start()

    def evicted(self, block: int, key: Key) -> None:
        """Store a block that the pool gives to another owner, before that writes to it."""
        if self.chain.is_first_in(key):
            if len(self.writes) < MOST_TOUCHES:
                self.write(TierWrite(key))
            return
        if not self.chain.tiers:
            return
        staged_block = self.staging.take(block)
        if staged_block is None:
            self.counts.dropped += 1
        else:
            self.write(TierWrite(key, *staged_block))

    @property
    def most_pinned(self) -> int:
        """The blocks that may be pinned in all tiers."""
        return self.chain.pins.most(self.chain.tiers)

    def has(self, key: Key) -> bool:
        """Return whether a tier seems to have a block."""
        return key in self.chain

    def pin(self, key: Key) -> int:
        """Keep a block for leases where a tier has it. Return the ticket of the result."""
        ticket = next(self.tickets)
        self.write(TierWrite(key, ticket=ticket))
        return ticket

    def store_pinned(self, key: Key, block: int) -> int | None:
        """Store a block of the pool, and keep it for leases. Return the ticket of the result, or None where no more of
        them can be copied now: half of the buffers are for what is evicted."""
        staged = self.staging.take(block) if 2 * len(self.staging.free) > self.staging.count else None
        if staged is None:
            return None
        ticket = next(self.tickets)
        self.write(TierWrite(key, *staged, ticket))
        return ticket

    def unpin(self, key: Key) -> None:
        self.write(TierUnpin(key))

    def pin_results(self) -> list[PinResult]:
        return self.chain.pins.take()

    def write(self, job: TierWrite | TierUnpin) -> None:
        self.writes.append(job)
        self.thread.wake()

    def tiers_of(self, keys: Sequence[Key]) -> list[str]:
        """Return the tiers of the first of these blocks, up to the first that is in none."""
        tiers: list[str] = []
        for key in keys:
            tier = self.chain.tier_of(key)
            if tier is None:
                break
            tiers.append(tier)
        return tiers

    def read(self, pairs: Sequence[tuple[Key, int]]) -> int:
        """Begin to read blocks into the pool, and return the ticket of the result."""
        ticket = next(self.tickets)
        self.reads.append(TierRead(ticket, tuple(pairs), self.storage.mark()))
        self.thread.wake()
        return ticket

    @property
    def has_results(self) -> bool:
        return not self.done.empty()

    def poll(self) -> list[TierResult]:
        """Return the reads that have ended."""
        results: list[TierResult] = []
        while self.has_results:
            results.append(self.done.get())
            self.costs.observe(results[-1].seconds)
        return results

    def counters(self) -> dict[str, int]:
        """Return the counts under their names in heartbeats."""
        counts = self.counts
        return {
            "kv_tier_stored_blocks": counts.stored,
            "kv_tier_loaded_blocks": counts.loaded,
            "kv_tier_dropped_blocks": counts.dropped,
            "kv_tier_damaged_blocks": counts.damaged,
            "kv_tier_failures": self.chain.failures,
        }

    def gauges(self) -> dict[str, int]:
        """Return the blocks in each tier that is used, those that leases keep there, and the fewest tokens that are
        worth a read from it, 0 where computing is sooner now."""
        size, gauges = self.storage.layout.block_size, dict[str, int]()
        for tier in self.chain.tiers:
            gauges[f"kv_tier_{tier.name}_blocks"] = len(tier)
            gauges[f"kv_tier_{tier.name}_leased_blocks"] = self.chain.pins.count(tier.name)
            gauges[f"kv_tier_{tier.name}_least_tokens"] = self.costs.least(tier.name, size) or 0
        return gauges

    def close(self) -> None:
        if self.thread.close():
            self.chain.close()

    def turn(self) -> float | None:
        jobs = self.reads or self.writes
        if not jobs:
            return None
        self.current = jobs.popleft()
        self.carry_out(self.current)
        self.current = None
        return 0.0

    def carry_out(self, job: TierRead | TierWrite | TierUnpin) -> None:
        if isinstance(job, TierRead):
            self.finish(self.fetch(job))
        elif isinstance(job, TierUnpin):
            self.chain.pins.remove(job.key)
        elif job.number is not None:
            self.store(job, job.number)
        elif job.ticket is not None:
            self.chain.pin(job.key, job.ticket)
        else:
            self.chain.touch(job.key)
        if not self.chain.pins.results.empty():
            self.wake()

    def store(self, job: TierWrite, number: int) -> None:
        if self.thread.closing.is_set():
            return
        block, digest = self.staging.read(number, job.mark)
        if job.ticket is None:
            self.chain.store(job.key, block, digest)
        else:
            self.chain.store_pinned(job.key, job.ticket, block, digest)
        self.counts.stored += 1
        self.staging.give_back(number)

    def fetch(self, job: TierRead) -> TierResult:
        """Read blocks up to the first that is gone or damaged. What follows it could not be used."""
        good, seconds = 0, dict[str, tuple[float, int]]()
        for key, block in job.pairs:
            start_time = time.monotonic()
            hit = None if self.thread.closing.is_set() else self.chain.read(key, self.staging.target(block))
            if hit is None:
                break
            if not self.staging.arrive(block, hit.digest, job.mark):
                self.counts.damaged += 1
                self.chain.drop(key)
                break
            good += 1
            total, blocks = seconds.get(hit.tier, (0.0, 0))
            seconds[hit.tier] = total + time.monotonic() - start_time, blocks + 1
        self.counts.loaded += good
        return TierResult(job.ticket, good, seconds)

    def mend(self, error: BaseException) -> None:
        """End the current read without a block, or give up the current write, after an exception in the thread."""
        job, self.current = self.current, None
        if isinstance(job, TierRead):
            self.finish(TierResult(job.ticket, 0))
        if not isinstance(job, TierWrite):
            return
        if job.number is not None:
            self.staging.give_back(job.number)
        if job.ticket is not None:
            self.chain.pins.answer(job.key, job.ticket, None)
            self.wake()

    def finish(self, done: TierResult) -> None:
        self.done.put(done)
        self.wake()
