# SPDX-License-Identifier: Apache-2.0
"""Pages of the pool are mapped before they are used: those that come next, and no more than that."""

import re
from pathlib import Path

import pytest
import torch

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import HEADER_BYTES, KVStorage
from pontil.runtime.worker.start import prefault
from pontil.runtime.worker.start.prefault import CHUNK_BYTES, SPARED_BYTES, Prefault

LAYOUT = KVLayout(16, 4, 3, 64, "bfloat16")
PLENTY = 1 << 40


def memory(blocks: int = 60) -> tuple[KVStorage, BlockPool]:
    return KVStorage(LAYOUT, blocks, torch.device("cpu")), BlockPool(blocks)


def resident(storage: KVStorage) -> int:
    """Return the bytes of the pool's mapping that are resident in this process, according to the kernel."""
    address = storage.shared.data_ptr() - HEADER_BYTES
    maps = Path("/proc/self/smaps").read_text()
    found = re.search(rf"^{address:x}-.*?^Rss:\s+(\d+) kB", maps, re.MULTILINE | re.DOTALL)
    assert found is not None
    return int(found[1]) << 10


def finish(ahead: Prefault) -> None:
    for _ in range(10_000):
        if not ahead.is_due:
            return
        ahead.advance()
    raise AssertionError("it never ends")


def test_what_comes_next_is_mapped_and_no_more() -> None:
    storage, pool = memory()
    storage.tensor[1] = 1.5
    ahead = Prefault(storage, pool, 1 << 20, lambda: PLENTY)
    finish(ahead)
    first = HEADER_BYTES + LAYOUT.block_bytes + (1 << 20)
    assert first <= resident(storage) <= first + CHUNK_BYTES < storage.size
    pool.take(20)
    assert ahead.is_due
    finish(ahead)
    assert resident(storage) >= HEADER_BYTES + 21 * LAYOUT.block_bytes + (1 << 20)
    assert bool((storage.tensor[1] == 1.5).all()) and not storage.tensor[2:].any()


def test_blocks_that_come_back_move_nothing() -> None:
    storage, pool = memory()
    ahead = Prefault(storage, pool, 1 << 20, lambda: PLENTY)
    for _ in range(5):
        blocks = pool.take(7)
        assert blocks is not None and max(blocks) == pool.highest == 7
        pool.release(blocks)
    assert ahead.goal == HEADER_BYTES + 8 * LAYOUT.block_bytes + (1 << 20)


def test_a_small_pool_is_mapped_to_its_end() -> None:
    storage, pool = memory(5)
    ahead = Prefault(storage, pool, left=lambda: PLENTY)
    finish(ahead)
    assert resident(storage) == -(-storage.size // 4096) * 4096


def test_it_leaves_memory_to_others() -> None:
    storage, pool = memory()
    ahead = Prefault(storage, pool, left=lambda: SPARED_BYTES - 1)
    ahead.advance()
    assert not ahead.is_due and resident(storage) == HEADER_BYTES, "only the epochs and the pool's identity"


def test_a_kernel_that_cannot_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefault, "MADV_POPULATE_WRITE", 9999)
    ahead = Prefault(*memory(), left=lambda: PLENTY)
    ahead.advance()
    assert not ahead.is_due
