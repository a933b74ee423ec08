# SPDX-License-Identifier: Apache-2.0
"""Mapping of KV memory before it is needed, and its return when it is needed no more.

The first write to a page of the pool costs a page fault: about a microsecond if the machine has a free page, and twenty
in a virtual machine whose host must allocate it first. A prompt of 256 tokens of a small model is 1,440 pages. So an
idle worker maps pages ahead of use, as many as were used so far; but not all of a large pool: memory that is never
needed stays free for other processes. After a time without work they get most of the rest as well. Where the system has
huge pages for shared memory (`advise` in /sys/kernel/mm/transparent_hugepage/shmem_enabled) a page is 2 MiB.
"""

from collections.abc import Callable, Sequence

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import HEADER_BYTES, KVStorage
from pontil.runtime.probe.host_memory import host_room

# New in Linux 5.14; Python has no name for it. It writes nothing: the contents stay.
MADV_POPULATE_WRITE = 23
# At most about a millisecond of work, so that a message never waits for long.
CHUNK_BYTES = 256 << 10
# Free memory is checked once for so many mapped bytes, and so many bytes of it are left unmapped.
LOOK_BYTES = 32 << 20
SPARED_BYTES = 2 << 30
# Bytes that go back at a time, and blocks that leave the prefix cache: a few milliseconds.
RETURNED_BYTES, EVICTED_BLOCKS = 16 << 20, 256

# Zeroes blocks, in ascending order, and gives back their memory.
Erase = Callable[[Sequence[int]], None]


def bytes_left() -> int:
    return host_room().bytes


class Prefault:
    """Mapping of the blocks that the pool has not handed out yet, in the order in which it will: as many as it has, at
    most `ahead` bytes, while the machine has enough memory `left`.

    Not thread-safe: the engine's thread owns it.
    """

    def __init__(self, storage: KVStorage, pool: BlockPool, ahead: int, left: Callable[[], int] = bytes_left) -> None:
        self.storage, self.pool, self.ahead, self.left = storage, pool, ahead, left
        self.mapped = 0
        # The last block that was handed out when memory went back: nothing is mapped ahead until more are wanted.
        self.returned_at: int | None = None
        # Pages of staged blocks are given back as soon as these have arrived.
        self.possible = not storage.staged

    @property
    def goal(self) -> int:
        """The end, in bytes of the pool's memory, up to which pages should be mapped."""
        return min(self.storage.size, self.used + min(self.used, self.ahead))

    @property
    def used(self) -> int:
        """The end of what the pool has handed out."""
        return HEADER_BYTES + (self.pool.highest + 1) * self.storage.layout.block_bytes

    def hear(self, highest: int) -> None:
        """Take note of the last block that the pool of another process, which hands out this one's, has handed out."""
        self.pool.highest = max(self.pool.highest, highest)

    @property
    def is_due(self) -> bool:
        return self.possible and self.mapped < self.goal and self.pool.highest != self.returned_at

    def advance(self) -> None:
        """Map the next few pages. If that fails, they are mapped on first use, as usual."""
        if self.mapped % LOOK_BYTES == 0 and self.left() < SPARED_BYTES:
            self.possible = False
            return
        try:
            size = min(CHUNK_BYTES, self.storage.size - self.mapped)
            self.storage.file.advise(MADV_POPULATE_WRITE, self.mapped, size)
        except OSError:
            self.possible = False
            return
        self.mapped += CHUNK_BYTES

    def give_back(self, erase: Erase) -> None:
        """Give back what is mapped behind the blocks that the pool has handed out."""
        if self.mapped > self.used:
            first = (self.used - HEADER_BYTES) // self.storage.layout.block_bytes
            erase(range(first, self.storage.num_blocks))
            self.mapped = self.used - self.used % CHUNK_BYTES
        self.returned_at = self.pool.highest


class IdleReturn:
    """The return of the memory of a pool after `timeout` seconds without work, except for `kept` bytes of the prefix
    cache, those used last. Owned blocks stay. For a pool in the memory of this host. `erase` does it in all ranks of a
    worker, whose pools are alike.

    Not thread-safe: the engine's thread owns it.
    """

    def __init__(self, prefault: Prefault, timeout: float, kept: int, erase: Erase) -> None:
        self.prefault, self.storage, self.pool, self.erase = prefault, prefault.storage, prefault.pool, erase
        self.timeout = timeout
        self.most_idle = kept // self.storage.layout.block_bytes
        self.possible = not self.storage.staged
        # The blocks to give back, in descending order, as far as they are still free; None before they are known.
        self.left: list[int] | None = None
        # The end of the work behind which the return is complete. Before any work there is nothing to give back.
        self.done_for = 0.0

    def due(self, busy_at: float) -> float | None:
        """Return when there is something to do, after work that ended then; None if never."""
        return busy_at + self.timeout if self.possible and self.done_for != busy_at else None

    def advance(self, busy_at: float) -> None:
        """Do the next few milliseconds of it."""
        over = len(self.pool.idle) - self.most_idle
        if over > 0:
            for _ in range(min(over, EVICTED_BLOCKS)):
                self.pool.evict()
            self.left = None
            return
        if self.left is None:
            self.left = self.pool.touched()[::-1]
        count = max(1, RETURNED_BYTES // self.storage.layout.block_bytes)
        some, self.left = self.left[-count:], self.left[:-count]
        if some:
            # Blocks are bound between two pieces without a step: for those that a pull writes to, for one.
            if free := [block for block in reversed(some) if self.pool.is_free(block)]:
                self.erase(free)
            return
        self.pool.renew()
        self.prefault.give_back(self.erase)
        self.left, self.done_for = None, busy_at

    def interrupt(self) -> None:
        """Work has begun: which blocks are free is to be found out anew."""
        self.left = None
