# SPDX-License-Identifier: Apache-2.0
"""Blocks go from the memory in which an engine computes to a tier, and come back, without a wait of the engine's
thread."""

import threading
import time

import pytest
import torch
from open_resources import nothing_left
from staged import MEMORIES, storage_in
from tiers import DEADLINE, ScriptedTier, opened, wait_until_idle

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.tier.measure import seconds_of_block, seconds_of_turn
from pontil.runtime.cache.tier.memory_tier import MemoryTier
from pontil.runtime.cache.tier.tier_store import TierResult, TierStore

LAYOUTS = [KVLayout(16, 2, 2, 8, "bfloat16"), KVLayout(16, 2, 2, 8, "int8", packed=True), KVLayout(8, 3, 1, 24, "fp8")]


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def result(store: TierStore) -> TierResult:
    until = time.monotonic() + DEADLINE
    while not store.has_results:
        assert time.monotonic() < until
        time.sleep(0.001)  # the store wakes an engine, which is not here
    (done,) = store.poll()
    return done


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.dtype)
def test_a_block_comes_back_to_another_place(memory: str, layout: KVLayout) -> None:
    storage = storage_in(memory, layout, 10)
    storage.own.random_(0, 256)
    before = storage.own.clone()
    with opened(storage, MemoryTier(4 * layout.block_bytes, layout.block_bytes)) as store:
        for block in (1, 2, 3):
            store.evicted(block, key(block))
            # The next owner writes at once.
            storage.own[block] = 0
        wait_until_idle(store)
        ticket = store.read([(key(1), 7), (key(3), 8), (key(9), 9)])
        done = result(store)
        assert (done.ticket, done.good) == (ticket, 2) and store.counts.loaded == 2
        assert torch.equal(storage.own[7], before[1]) and torch.equal(storage.own[8], before[3])
        assert torch.equal(storage.own[4:7], before[4:7]) and set(done.seconds) == {"memory"}


def test_a_thread_that_is_behind_costs_blocks_and_no_time() -> None:
    layout = LAYOUTS[0]
    storage = storage_in("host", layout, 20)
    tier = ScriptedTier(20 * layout.block_bytes, layout.block_bytes)
    with opened(storage, tier, staging_bytes=6 * layout.block_bytes) as store:
        tier.may_read.clear()
        store.evicted(1, key(1))
        wait_until_idle(store)
        ticket = store.read([(key(1), 15)])
        for block in range(2, 12):
            store.evicted(block, key(block))
        assert store.counts.dropped == 4
        tier.may_read.set()
        done = result(store)
        assert (done.ticket, done.good) == (ticket, 1)
        wait_until_idle(store)
        assert store.counts.stored == 7 and len(tier) == 7 and len(store.staging.free) == 6
        # A block that is there already is only touched.
        store.evicted(1, key(1))
        wait_until_idle(store)
        assert store.counts.stored == 7 and next(reversed(tier.entries)) == key(1)


def test_closing_ends_the_thread_with_work_before_it() -> None:
    layout = LAYOUTS[0]
    storage = storage_in("host", layout, 20)
    with nothing_left(), opened(storage, MemoryTier(20 * layout.block_bytes, layout.block_bytes)) as store:
        for block in range(1, 19):
            store.evicted(block, key(block))
        store.read([(key(1), 19)])


def test_measures_are_times() -> None:
    layout = LAYOUTS[0]
    storage = storage_in("host", layout, 4)
    tier = MemoryTier(4 * layout.block_bytes, layout.block_bytes)
    woken = threading.Event()
    with opened(storage, tier) as store:
        store.wake = woken.set
        assert 0 < seconds_of_block(tier, storage) < DEADLINE and 0 < seconds_of_turn(store) < DEADLINE
        assert not store.has_results and not woken.is_set() and len(tier) == 0
