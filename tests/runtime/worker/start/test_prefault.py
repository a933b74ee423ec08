# SPDX-License-Identifier: Apache-2.0
"""Pages of the pool are mapped before they are used: those that come next, and no more than that."""

import os
import re
import resource
from pathlib import Path

import pytest
import torch

from pontil.gpu_ops.kernels.weights.arena import HUGE_PAGE
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import EPOCH_SLOTS, HEADER_BYTES, IDENTITY_BYTES, KVStorage
from pontil.runtime.worker.process.idle_work import IdleWork
from pontil.runtime.worker.start import prefault
from pontil.runtime.worker.start.prefault import CHUNK_BYTES, SPARED_BYTES, IdleReturn, Prefault

LAYOUT = KVLayout(16, 4, 3, 64, "bfloat16")
PLENTY = 1 << 40
# New in Linux 6.1: it makes a huge page, whatever the system's settings are.
MADV_COLLAPSE = 25
AHEAD, IDLE_SECONDS = 128 << 20, 300.0


def memory(blocks: int = 60) -> tuple[KVStorage, BlockPool]:
    return KVStorage(LAYOUT, blocks, torch.device("cpu")), BlockPool(blocks)


def resident(storage: KVStorage, what: str = "Rss") -> int:
    """Return the bytes of the pool's mapping that are resident in this process, according to the kernel."""
    maps = Path("/proc/self/smaps").read_text()
    found = re.search(rf"^{storage.file.address:x}-.*?^{what}:\s+(\d+) kB", maps, re.MULTILINE | re.DOTALL)
    assert found is not None
    return int(found[1]) << 10


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def test_a_huge_page_of_the_pool_is_one_fault() -> None:
    """Systems that do not give huge pages to such files by themselves still make one of what is there, when asked."""
    storage, _ = memory(2 * HUGE_PAGE // LAYOUT.block_bytes)
    page = storage.file.tensor[:HUGE_PAGE]
    assert storage.file.address % HUGE_PAGE == 0, "it begins where a huge page can"
    try:
        storage.file.advise(MADV_COLLAPSE, 0, HUGE_PAGE)
    except OSError as error:
        pytest.skip(f"this system has no huge pages for it: {error}")
    assert resident(storage, "ShmemPmdMapped") >= HUGE_PAGE
    before = faults()
    page[EPOCH_SLOTS * 8 + IDENTITY_BYTES :] = 7
    assert faults() - before < 10
    first = range(1, (HUGE_PAGE // 2 - HEADER_BYTES) // LAYOUT.block_bytes)
    held = os.fstat(storage.fd).st_blocks
    storage.erase(first)
    # Before they are read: a read of what went back takes it anew.
    assert os.fstat(storage.fd).st_blocks < 0.6 * held, "a part of a huge page goes back too"
    assert not storage.tensor[list(first)].any() and bool((page[HUGE_PAGE // 2 :] == 7).all())


def finish(ahead: Prefault) -> None:
    for _ in range(10_000):
        if not ahead.is_due:
            return
        ahead.advance()
    raise AssertionError("it never ends")


def test_as_much_as_was_used_is_mapped_ahead_and_no_more() -> None:
    storage, pool = memory(200)
    storage.tensor[1] = 1.5
    ahead = Prefault(storage, pool, 1 << 20, lambda: PLENTY)
    finish(ahead)
    used = HEADER_BYTES + LAYOUT.block_bytes
    assert 2 * used <= resident(storage) <= 2 * used + 2 * CHUNK_BYTES < storage.size
    pool.take(100)
    assert ahead.is_due
    finish(ahead)
    used = HEADER_BYTES + 101 * LAYOUT.block_bytes
    assert used + (1 << 20) <= resident(storage) <= used + (1 << 20) + 2 * CHUNK_BYTES < storage.size
    assert bool((storage.tensor[1] == 1.5).all()) and not storage.tensor[2:].any()


def test_blocks_that_come_back_move_nothing() -> None:
    storage, pool = memory()
    ahead = Prefault(storage, pool, 1 << 20, lambda: PLENTY)
    for _ in range(5):
        blocks = pool.take(7)
        assert blocks is not None and max(blocks) == pool.highest == 7
        pool.release(blocks)
    assert ahead.goal == 2 * (HEADER_BYTES + 8 * LAYOUT.block_bytes)


def test_a_small_pool_is_mapped_to_its_end() -> None:
    storage, pool = memory(5)
    ahead = Prefault(storage, pool, AHEAD, left=lambda: PLENTY)
    pool.take(3)
    finish(ahead)
    assert resident(storage) == -(-storage.size // 4096) * 4096


def test_it_leaves_memory_to_others() -> None:
    storage, pool = memory()
    ahead = Prefault(storage, pool, AHEAD, left=lambda: SPARED_BYTES - 1)
    ahead.advance()
    assert not ahead.is_due and resident(storage) == HEADER_BYTES, "only the epochs and the pool's identity"


def test_a_kernel_that_cannot_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefault, "MADV_POPULATE_WRITE", 9999)
    ahead = Prefault(*memory(), AHEAD, left=lambda: PLENTY)
    ahead.advance()
    assert not ahead.is_due


def used_and_cached(pool: BlockPool, count: int, cached: int, name: int = 0) -> list[int]:
    """Hand blocks out and take them back, the first of them known to the prefix cache."""
    blocks = pool.take(count)
    assert blocks is not None
    for place, block in enumerate(blocks[:cached]):
        pool.index.add(f"{name}-{place}".encode(), block)
    pool.release(blocks)
    return blocks


def rested(pool: BlockPool, prefault: Prefault, kept: int) -> tuple[IdleWork, int]:
    """Have a worker do nothing for long enough after its last step, and return how often it was at work."""
    idle = IdleWork(prefault=prefault, idle_return=IdleReturn(prefault, IDLE_SECONDS, kept, prefault.storage.erase))
    idle.after_step(9.0, 10.0)
    assert idle.patience(10.0, 1000.0) == 0.0 if prefault.is_due else IDLE_SECONDS
    finish(prefault)
    idle.spend(10.0 + IDLE_SECONDS - 1)
    before = pool.highest
    turns = 0
    while idle.patience(10.0 + IDLE_SECONDS, 1000.0) == 0.0:
        idle.spend(10.0 + IDLE_SECONDS)
        pool.check()
        turns += 1
        assert turns < 1000, "it never ends"
    assert pool.highest <= before
    return idle, turns


@pytest.mark.parametrize("cached", [0, 5, 60])
def test_an_idle_worker_keeps_the_prefixes_used_last(cached: int) -> None:
    storage, pool = memory(400)
    prefault = Prefault(storage, pool, AHEAD, left=lambda: PLENTY)
    blocks = used_and_cached(pool, 300, cached)
    storage.tensor[1:301] = 2.5
    assert resident(storage) > 300 * LAYOUT.block_bytes
    idle, _ = rested(pool, prefault, 10 * LAYOUT.block_bytes)
    left = min(cached, 10)
    # Prefixes are evicted from their ends, since the first blocks are those used last.
    assert sorted(pool.idle) == sorted(blocks[:left]) and all(pool.index.knows(block) for block in pool.idle)
    assert resident(storage) <= HEADER_BYTES + (left + 1) * LAYOUT.block_bytes + CHUNK_BYTES
    assert bool((storage.tensor[blocks[:left]] == 2.5).all()) and not storage.tensor[left + 1 :].any()
    assert not prefault.is_due, "nothing is mapped again for nobody"
    again = pool.take(20)
    assert again == list(range(left + 1, left + 21)) and prefault.is_due
    assert idle.patience(10.0 + IDLE_SECONDS, 7.0) == 0.0


def test_blocks_with_an_owner_stay_and_work_interrupts_the_return() -> None:
    storage, pool = memory(400)
    owned = pool.take(3)
    assert owned is not None
    used_and_cached(pool, 300, 0)
    storage.tensor[1:304] = 2.5
    prefault = Prefault(storage, pool, AHEAD, left=lambda: PLENTY)
    finish(prefault)
    idle = IdleWork(prefault=prefault, idle_return=IdleReturn(prefault, IDLE_SECONDS, 0, prefault.storage.erase))
    idle.after_step(9.0, 10.0)
    idle.spend(10.0 + IDLE_SECONDS)
    more = pool.take(5)
    assert more is not None
    storage.tensor[more] = 3.5
    idle.after_step(400.0, 401.0)
    assert idle.patience(402.0, 1000.0) in (0.0, IDLE_SECONDS - 1.0)
    finish(prefault)
    for _ in range(1000):
        idle.spend(401.0 + IDLE_SECONDS)
    assert resident(storage) <= HEADER_BYTES + (pool.highest + 1) * LAYOUT.block_bytes + CHUNK_BYTES
    assert bool((storage.tensor[owned] == 2.5).all()) and bool((storage.tensor[more] == 3.5).all())
    assert pool.highest == max(*owned, *more)


def test_blocks_that_are_bound_between_two_pieces_keep_what_is_written_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that pulls blocks makes no step before they are there, and is idle meanwhile."""
    monkeypatch.setattr("pontil.runtime.worker.start.prefault.RETURNED_BYTES", LAYOUT.block_bytes)
    storage, pool = memory(400)
    used_and_cached(pool, 300, 0)
    prefault = Prefault(storage, pool, AHEAD, left=lambda: PLENTY)
    finish(prefault)
    idle = IdleWork(prefault=prefault, idle_return=IdleReturn(prefault, IDLE_SECONDS, storage.size, storage.erase))
    idle.after_step(9.0, 10.0)
    idle.spend(10.0 + IDLE_SECONDS)
    bound, cached = pool.take(60), used_and_cached(pool, 60, 60)
    assert bound is not None
    storage.tensor[[*bound, *cached]] = 3.5
    for _ in range(1000):
        idle.spend(10.0 + IDLE_SECONDS)
        if idle.patience(10.0 + IDLE_SECONDS, 1000.0):
            break
    assert bool((storage.tensor[bound] == 3.5).all())
    assert all(bool((storage.tensor[block] == 3.5).all()) for block in pool.idle)


@pytest.mark.parametrize("seconds", [0.5, 7200.0])
def test_memory_goes_back_after_the_time_that_was_said(seconds: float) -> None:
    storage, pool = memory(400)
    used_and_cached(pool, 300, 0)
    prefault = Prefault(storage, pool, 0, left=lambda: PLENTY)
    finish(prefault)
    idle = IdleWork(prefault=prefault, idle_return=IdleReturn(prefault, seconds, 0, storage.erase))
    idle.after_step(9.0, 10.0)
    assert idle.patience(10.0 + 0.9 * seconds, 1e5) == pytest.approx(0.1 * seconds)
    assert idle.patience(10.0 + seconds, 1e5) == 0.0


def test_nothing_is_mapped_ahead_where_that_was_said() -> None:
    storage, pool = memory(200)
    pool.take(100)
    ahead = Prefault(storage, pool, 0, lambda: PLENTY)
    finish(ahead)
    assert resident(storage) <= HEADER_BYTES + 101 * LAYOUT.block_bytes + CHUNK_BYTES


def test_before_the_first_step_nothing_goes_back() -> None:
    """A worker that finds the prefixes of the process before has not had work yet."""
    storage, pool = memory(400)
    used_and_cached(pool, 300, 300)
    prefault = Prefault(storage, pool, AHEAD, left=lambda: PLENTY)
    finish(prefault)
    idle = IdleWork(prefault=prefault, idle_return=IdleReturn(prefault, IDLE_SECONDS, 0, prefault.storage.erase))
    idle.spend(1e6)
    assert len(pool.idle) == 300 and idle.patience(1e6, 5.0) == 5.0
