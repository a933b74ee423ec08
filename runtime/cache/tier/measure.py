# SPDX-License-Identifier: Apache-2.0
"""Measurements of tiers at a worker's start."""

import threading
import time

import numpy as np

from pontil.gpu_ops.kv.digest import block_digests
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.cache.tier.tier import KVTier
from pontil.runtime.cache.tier.tier_store import TierStore

# Blocks of one measurement, as many bytes at most, and measurements of which the shortest counts.
BLOCKS, BYTES, ROUNDS = 8, 16 << 20, 3
# No clock is finer.
LEAST_SECONDS = 1e-7
PATIENCE = 60.0


def seconds_of_block(tier: KVTier, storage: KVStorage) -> float:
    """Return the seconds to read one block from a tier and to digest it. Raises OSError."""
    size = storage.layout.block_bytes
    count, weights = max(1, min(BLOCKS, BYTES // size)), storage.weights_of(len(storage.layout.kv_heads))
    into = np.zeros((1, size), dtype=np.uint8)
    read = min(tier.probe(count, into[0]) for _ in range(ROUNDS))
    begun = time.perf_counter()
    for _ in range(count):
        block_digests(into, [0], weights)
    return max(LEAST_SECONDS, (read + time.perf_counter() - begun) / count)


def seconds_of_turn(store: TierStore) -> float:
    """Return the seconds of a read without blocks: what every read takes besides them."""
    ended, wake = threading.Event(), store.wake
    store.wake, best = ended.set, PATIENCE
    for _ in range(ROUNDS):
        ended.clear()
        begun = time.perf_counter()
        store.read([])
        ended.wait(PATIENCE)
        best = min(best, time.perf_counter() - begun)
        store.poll()
    store.wake = wake
    return best
