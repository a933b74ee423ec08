# SPDX-License-Identifier: Apache-2.0
"""Mapping of KV memory before it is needed.

The first write to a page of the pool costs a page fault: about a microsecond if the machine has a free page, and twenty
in a virtual machine whose host must allocate it first. A prompt of 256 tokens of a small model is 1,440 pages. So an
idle worker maps pages ahead of use; but not all of a large pool: memory that is never needed stays free for other
processes.
"""

from collections.abc import Callable

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import HEADER_BYTES, KVStorage
from pontil.runtime.probe.host_memory import AHEAD_BYTES, host_room

# New in Linux 5.14; Python has no name for it. It writes nothing: the contents stay.
MADV_POPULATE_WRITE = 23
# At most about a millisecond of work, so that a message never waits for long.
CHUNK_BYTES = 256 << 10
# Free memory is checked once for so many mapped bytes, and so many bytes of it are left unmapped.
LOOK_BYTES = 32 << 20
SPARED_BYTES = 2 << 30


def bytes_left() -> int:
    return host_room().bytes


class Prefault:
    """Mapping of the blocks that the pool has not handed out yet, in the order in which it will, `ahead` bytes of them,
    while the machine has enough memory `left`.

    Not thread-safe: the engine's thread owns it.
    """

    def __init__(
        self, storage: KVStorage, pool: BlockPool, ahead: int = AHEAD_BYTES, left: Callable[[], int] = bytes_left
    ) -> None:
        self.storage, self.pool, self.ahead, self.left = storage, pool, ahead, left
        self.mapped = 0
        # Pages of staged blocks are given back as soon as these have arrived.
        self.possible = not storage.staged

    @property
    def goal(self) -> int:
        """The end, in bytes of the pool's memory, up to which pages should be mapped."""
        used = HEADER_BYTES + (self.pool.highest + 1) * self.storage.layout.block_bytes
        return min(self.storage.size, used + self.ahead)

    @property
    def is_due(self) -> bool:
        return self.possible and self.mapped < self.goal

    def advance(self) -> None:
        """Map the next few pages. If that fails, they are mapped on first use, as usual."""
        if self.mapped % LOOK_BYTES == 0 and self.left() < SPARED_BYTES:
            self.possible = False
            return
        try:
            self.storage.map.madvise(
                MADV_POPULATE_WRITE, self.mapped, min(CHUNK_BYTES, self.storage.size - self.mapped)
            )
        except OSError:
            self.possible = False
            return
        self.mapped += CHUNK_BYTES
