# SPDX-License-Identifier: Apache-2.0
"""Measurements of tiers at a worker's start."""

import threading
import time

import numpy as np

from pontil.gpu_ops.kv.digest import block_digests
from pontil.runtime.cache.prefix import KEY_BYTES
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
    read_seconds = min(tier.probe(count, into[0]) for _ in range(ROUNDS))
    start_time = time.perf_counter()
    for _ in range(count):
        block_digests(into, [0], weights)
    return max(LEAST_SECONDS, (read_seconds + time.perf_counter() - start_time) / count)


def seconds_of_full(tier: KVTier, storage: KVStorage) -> tuple[float, float]:
    """Fill an empty tier and read all of it. Return the seconds to write a block and to read one that was written not
    long before, each with its digest. The tier is empty again. Raises OSError."""
    rows = np.random.default_rng(1).integers(0, 256, (1, storage.layout.block_bytes), dtype=np.uint8)
    weights = storage.weights_of(len(storage.layout.kv_heads))
    keys = [number.to_bytes(KEY_BYTES, "big") for number in range(tier.capacity)]
    start_time = time.perf_counter()
    for key in keys:
        tier.put(key, rows[0], block_digests(rows, [0], weights)[0])
    written_time = time.perf_counter()
    for key in keys:
        tier.get(key, rows[0])
        block_digests(rows, [0], weights)
    read_time = time.perf_counter()
    for key in keys:
        tier.drop(key)
    return (written_time - start_time) / len(keys), (read_time - written_time) / len(keys)


def seconds_of_turn(store: TierStore) -> float:
    """Return the seconds of a read without blocks: what every read takes besides them."""
    end_event, wake = threading.Event(), store.wake
    store.wake, best = end_event.set, PATIENCE
    for _ in range(ROUNDS):
        end_event.clear()
        start_time = time.perf_counter()
        store.read([])
        end_event.wait(PATIENCE)
        best = min(best, time.perf_counter() - start_time)
        store.poll()
    store.wake = wake
    return best
