# SPDX-License-Identifier: Apache-2.0
"""One pull over NIXL: reads of its blocks, a few at a time, then a read of the epoch cell.

The cell's read begins when all data has arrived, so it shows whether any block was reused before that. A pull that is
cancelled or has failed begins nothing more, and ends when the library has ended what was begun: until then its blocks
may be written to.
"""

import mmap
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pontil.runtime.cache.storage import KVStorage, fence
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Pair, Pull, PullResult
from pontil.runtime.transfer.nixl.address import CELL_BYTES, NixlAddress, PoolMemory, rows_of
from pontil.runtime.transfer.nixl.agent import NixlAgent, PeerDisconnected

# Bytes of one read: few enough that a cancelled pull ends soon, and many enough that a read's own cost is small.
READ_BYTES = 4 << 20
# Reads of one pull at a time: digests are computed of one while others are on their way.
AT_ONCE = 4


class NixlPool:
    """Our pool as the agent writes to it. `cells` are where epochs of peers arrive, those in `free` unused; the first
    is for reads whose result nobody needs."""

    def __init__(self, agent: NixlAgent, storage: KVStorage) -> None:
        self.agent, self.storage = agent, storage
        layout, own_pool = storage.layout, storage.own
        on_gpu = storage.device.type == "cuda"
        memory, device = ("VRAM", storage.device.index or 0) if on_gpu else ("DRAM", 0)
        self.memory = PoolMemory(
            storage.epochs.data_ptr(),
            own_pool.data_ptr(),
            memory,
            device,
            storage.num_blocks,
            layout.block_bytes,
            layout.kv_heads,
        )
        self.cells = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)
        self.free = list(range(1, len(self.cells)))
        storage.pinned = storage.memory is None
        agent.share("DRAM", self.memory.cells, storage.epochs.nbytes)
        agent.share(memory, self.memory.blocks, own_pool.nbytes, device)
        agent.share("DRAM", self.cells.ctypes.data, self.cells.nbytes)

    def read_cell(self, address: NixlAddress, slot: int, cell: int) -> int:
        """Begin to read a peer's epoch cell into one of ours; return the handle."""
        ours = np.array([[self.cells.ctypes.data + cell * CELL_BYTES, CELL_BYTES, 0]], np.uint64)
        return self.agent.read(address.agent, ("DRAM", "DRAM"), ours, address.pool.cell_row(slot))

    def read_blocks(self, address: NixlAddress, pairs: Sequence[Pair], heads: range) -> int:
        """Begin to read these heads of a peer's blocks into ours; return the handle."""
        ours, theirs = rows_of(pairs, self.memory, address.pool, heads, self.storage.layout.runs)
        return self.agent.read(address.agent, (self.memory.memory, address.pool.memory), ours, theirs)

    def wait_for(self, mark: Any) -> None:
        """Wait until our device is past the moment after which the blocks may be written."""
        if self.storage.memory is not None:
            with self.storage.memory.after(mark):
                return

    def digests(self, blocks: Sequence[int], heads: range, mark: Any) -> list[int]:
        if self.storage.memory is None:
            return self.storage.digests(blocks, heads)
        with self.storage.memory.after(mark):
            return self.storage.own_digests(blocks, heads)


@dataclass(slots=True, eq=False)
class NixlReads:
    """The reads of a pull of these `heads` of blocks, from the pool at `address`. `reads` are in progress, oldest
    first: a handle and the blocks that it fills, none for the read of the cell. `has_lost_peer`: the peer can be
    reached no more."""

    pull: Pull
    address: NixlAddress
    heads: range
    mark: Any
    pool: NixlPool
    begun: float = field(default_factory=lambda: time.monotonic())
    posted: int = 0
    reads: deque[tuple[int, list[int]]] = field(default_factory=deque)
    digests: list[int] = field(default_factory=list)
    cell: int | None = None
    epoch: int | None = None
    error: str | None = None
    has_lost_peer: bool = False

    @property
    def has_failed(self) -> bool:
        return self.error is not None or self.pull.is_cancelled

    @property
    def over(self) -> bool:
        """True once the result is known and nothing is written any more."""
        return not self.reads and (self.error is not None or self.epoch is not None)

    def step(self) -> int:
        """Take what has arrived and begin what can be begun; return how many reads ended or began."""
        if self.pull.is_cancelled:
            self.fail(TransferError("cancelled"))
        ended_reads = self.collect()
        if self.error is not None or self.epoch is not None:
            return ended_reads
        try:
            return ended_reads + self.post()
        except TransferError as error:
            self.fail(error)
            return ended_reads + 1

    def fail(self, error: TransferError) -> None:
        """Record an error. Only the first one is kept."""
        self.error = self.error or str(error)
        self.has_lost_peer |= isinstance(error, PeerDisconnected)

    def collect(self) -> int:
        ended_reads = 0
        while self.reads:
            handle, blocks = self.reads[0]
            try:
                if not self.pool.agent.ended(handle):
                    break
            except TransferError as error:
                self.fail(error)
            self.reads.popleft()
            self.pool.agent.release(handle)
            ended_reads += 1
            if self.cell is not None:
                self.take_epoch()
            elif self.error is None:
                self.digests += self.pool.digests(blocks, self.heads, self.mark)
        return ended_reads

    def take_epoch(self) -> None:
        """Take the cell that was read, and give back ours."""
        assert self.cell is not None
        fence()
        if self.error is None:
            self.epoch = int(self.pool.cells[self.cell])
        self.pool.free.append(self.cell)
        self.cell = None

    def post(self) -> int:
        """Begin reads of the next blocks, or of the cell once all blocks are here."""
        begun_reads, most = 0, max(1, READ_BYTES // self.pool.storage.slice_bytes(self.heads))
        while self.posted < len(self.pull.pairs) and len(self.reads) < AT_ONCE:
            if self.posted == 0:
                self.pool.wait_for(self.mark)
            pairs = self.pull.pairs[self.posted : self.posted + most]
            self.reads.append((self.pool.read_blocks(self.address, pairs, self.heads), [ours for _, ours in pairs]))
            self.posted, begun_reads = self.posted + len(pairs), begun_reads + 1
        if not self.reads and self.pool.free:
            self.cell = self.pool.free.pop()
            try:
                self.reads.append((self.pool.read_cell(self.address, self.pull.slot, self.cell), []))
            except TransferError:
                self.pool.free.append(self.cell)
                self.cell = None
                raise
            begun_reads += 1
        return begun_reads

    def result(self) -> PullResult:
        seconds = time.monotonic() - self.begun
        if self.error is not None:
            return PullResult(self.error, seconds=seconds)
        moved_bytes = len(self.pull.pairs) * self.pool.storage.slice_bytes(self.heads)
        return PullResult(None, self.epoch, moved_bytes, seconds, self.digests)
