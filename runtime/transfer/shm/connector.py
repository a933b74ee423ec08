# SPDX-License-Identifier: Apache-2.0
"""The connector for workers on the same host: it maps the peer's pool read-only through /proc.

"The same host" means exactly that the peer's memory could be opened. One thread copies, and computes each block's
digest while the block is in the cache; the engine's step never waits.
"""

import time
from typing import Any

from pontil.runtime.cache.storage import epoch_after_data
from pontil.runtime.transfer.connector import PullResult, pieces
from pontil.runtime.transfer.shm.copying_connector import CopyingConnector, CopyJob, cancelled
from pontil.runtime.transfer.shm.peer_pool import PeerPool, describe

# Bytes to copy before computing their digest: they should still be in a core's own cache.
PIECE_BYTES = 512 << 10


class ShmConnector(CopyingConnector[PeerPool]):
    """The shared-memory connector."""

    thread_name = "shm-connector"

    def register(self) -> dict[str, Any]:
        return {"kind": "shm", **describe(self.storage)}

    def open_pool(self, descriptor: dict[str, Any], heads: range) -> PeerPool:
        return PeerPool(descriptor, "shm", self.storage.slice_bytes(heads), heads)

    def staged(self, peer: str) -> bool:
        return True

    def copy(self, job: CopyJob[PeerPool]) -> PullResult:
        """Copy the blocks of one pull. numpy releases the GIL while it copies and while it computes digests."""
        start_time, digests = time.monotonic(), list[int]()
        kv_heads = self.storage.layout.kv_heads
        heads, pairs = job.pull.heads or kv_heads, job.pull.pairs
        source, target = job.pool.blocks, self.storage.bytes
        if not job.pool.heads == heads == kv_heads:
            source = self.storage.slices(source, job.pool.heads, heads)
            target = self.storage.slices(target, kv_heads, heads)
        size = self.storage.slice_bytes(heads)
        for theirs, ours, length in pieces(pairs, max(1, PIECE_BYTES // size)):
            if self.must_end(job):
                return cancelled(start_time)
            target[ours : ours + length] = source[theirs : theirs + length]
            digests += self.storage.digests(range(ours, ours + length), heads)
            self.received += length
        epoch = epoch_after_data(job.pool.epochs, job.pull.slot)
        self.storage.land([ours for _, ours in pairs], heads, job.mark)
        return PullResult(None, epoch, len(pairs) * size, time.monotonic() - start_time, digests)
