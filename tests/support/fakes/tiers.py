# SPDX-License-Identifier: Apache-2.0
"""Engines with a tier below their pool, and tiers that wait or fail where a test says so."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.cache.tier.chain import TierChain
from pontil.runtime.cache.tier.costs import TierCosts
from pontil.runtime.cache.tier.memory_tier import MemoryTier
from pontil.runtime.cache.tier.tier import Block, KVTier
from pontil.runtime.cache.tier.tier_store import TierStore
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.runner.model_runner import ModelRunner

DEADLINE = 60.0


def always(*tiers: KVTier) -> TierCosts:
    """Return costs with which every read is worth its time, and may take as long as it does."""
    return TierCosts(DEADLINE, 0.0, {tier.name: 1e-6 for tier in tiers})


def wait_until_idle(store: TierStore) -> None:
    """Wait until the thread has nothing to do. Every job before has been carried out then."""
    until = time.monotonic() + DEADLINE
    while store.reads or store.writes or store.current is not None:
        assert time.monotonic() < until, "the thread did not get ready"
        time.sleep(0.001)  # the thread signals results of reads only


@contextmanager
def tier_below(engine: Engine, *tiers: KVTier, blocks: int = 500) -> Iterator[TierStore]:
    """Give an engine tiers, one of memory by default, for as long as the context lasts."""
    assert isinstance(engine.runner, ModelRunner)
    storage = engine.runner.storage
    used = tiers or (MemoryTier(blocks * storage.layout.block_bytes, storage.layout.block_bytes),)
    with opened(storage, *used) as store:
        engine.scheduler.tier.use(store)
        yield store


@contextmanager
def opened(storage: KVStorage, *tiers: KVTier, staging_bytes: int = 64 << 20) -> Iterator[TierStore]:
    chain = TierChain(tiers, storage.layout.block_bytes)
    store = TierStore(storage, chain, always(*tiers), staging_bytes=staging_bytes)
    try:
        yield store
    finally:
        store.close()
    assert not store.thread.thread.is_alive()


class SteppedStore(TierStore):
    """Store whose thread does nothing: the test carries out its jobs."""

    def turn(self) -> float | None:
        return None

    def work(self, most: int) -> None:
        for _ in range(most):
            super().turn()


class ScriptedTier(MemoryTier):
    """A tier in memory whose reads wait until they `may_read`, and that raises `fault` once it is set. `lies` turns a
    byte of what is read."""

    def __init__(self, size: int, block_bytes: int) -> None:
        super().__init__(size, block_bytes)
        self.may_read = threading.Event()
        self.may_read.set()
        self.fault: Exception | None = None
        self.lies = False
        self.reads = 0

    def put(self, key: Key, block: Block, digest: int) -> None:
        if self.fault is not None:
            raise self.fault
        super().put(key, block, digest)

    def get(self, key: Key, into: Block) -> int | None:
        assert self.may_read.wait(DEADLINE)
        self.reads += 1
        if self.fault is not None:
            raise self.fault
        found = super().get(key, into)
        into[7] ^= self.lies
        return found
