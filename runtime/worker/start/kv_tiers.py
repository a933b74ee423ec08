# SPDX-License-Identifier: Apache-2.0
"""The tiers below a worker's KV pool: opened, measured against computing, and given to its engine."""

import gc
import logging
import time
from collections.abc import Callable, Iterator

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.cache.tier.chain import TierChain
from pontil.runtime.cache.tier.costs import TierCosts
from pontil.runtime.cache.tier.disk_tier import DiskTier
from pontil.runtime.cache.tier.measure import seconds_of_block, seconds_of_turn
from pontil.runtime.cache.tier.memory_tier import MemoryTier
from pontil.runtime.cache.tier.tier import KVTier
from pontil.runtime.cache.tier.tier_pins import TierPins
from pontil.runtime.cache.tier.tier_store import TierStore
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.errors import ModelError
from pontil.runtime.probe.host_memory import gibibytes
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.worker.start.assembly import WorkerResources
from pontil.runtime.worker.start.bits_identity import code_identity

logger = logging.getLogger("pontil.worker")

# The first prompt may set something up; the second one is measured.
PROMPTS = 2
# The form of keys: blocks on a disk whose keys were made otherwise are not found.
KEYS = "blake2b-16"


def open_tiers(
    config: WorkerConfig, machine: WorkerResources, wake: Callable[[], None], failures: ThreadFailures
) -> TierStore | None:
    """Open the configured tiers and have the engine use those from which a block is read sooner than it is computed;
    None where none is configured. A tier that cannot be opened is left out. Raises ModelError."""
    if not (config.kv_tier_memory or config.kv_tier_disk):
        return None
    if config.ranks > 1:
        raise ModelError("--kv-tier is for workers of one device: leave it out, or separate the devices by commas")
    most = min(config.step_size.tokens, machine.config.max_model_len - 1)
    costs = TierCosts(seconds_of_token(engine_to_measure(machine, most), most), 0.0, {})
    # An engine refers to itself; its memory may have been made for this only.
    gc.collect()
    used = [tier for tier in tiers_of(config, machine) if is_sooner(tier, costs, machine.storage)]
    chain = TierChain(tuple(used), machine.layout.block_bytes, pins=TierPins(config.lease_share))
    store = TierStore(machine.storage, chain, costs, wake, failures)
    costs.base = seconds_of_turn(store)
    for tier in used:
        logger.info(
            "the %s tier of the KV cache has %d blocks of %d tokens, %d of them filled: prefixes are read from %d "
            "tokens on",
            tier.name,
            tier.capacity,
            machine.layout.block_size,
            len(tier),
            costs.least(tier.name, machine.layout.block_size),
        )
    machine.scheduler.tier.use(store)
    return store


def tiers_of(config: WorkerConfig, machine: WorkerResources) -> Iterator[KVTier]:
    """Yield the tiers, the fastest first."""
    block_bytes = machine.layout.block_bytes
    if config.kv_tier_memory:
        try:
            yield MemoryTier(config.kv_tier_memory, block_bytes)
        except MemoryError:
            wanted = gibibytes(config.kv_tier_memory)
            raise ModelError(f"{wanted} for --kv-tier memory cannot be had: give it less") from None
    if config.kv_tier_disk is not None:
        model, layout = machine.fingerprint, machine.layout.fingerprint()
        identity = f"{model} {layout} {machine.dtype} {machine.kernels} {KEYS} {code_identity()}"
        try:
            yield DiskTier(config.kv_tier_disk, config.name, config.kv_tier_disk_size, block_bytes, identity)
        except OSError as error:
            logger.error(
                "the disk tier in %s cannot be opened (%s): this worker keeps no evicted prefixes there",
                config.kv_tier_disk,
                error.strerror or error,
            )


def is_sooner(tier: KVTier, costs: TierCosts, storage: KVStorage) -> bool:
    """Measure a tier. Close it and return False unless a block is read from it sooner than it is computed."""
    size = storage.layout.block_size
    try:
        if tier.capacity == 0:
            raise OSError(f"a block of {size} tokens takes {storage.layout.block_bytes} bytes, which it has not")
        seconds = seconds_of_block(tier, storage)
    except OSError as error:
        logger.error("the %s tier of the KV cache is not used (%s)", tier.name, error.strerror or error)
        tier.close()
        return False
    costs.know(tier.name, seconds)
    pays = costs.least(tier.name, size) is not None
    words = f"read in {1e3 * seconds:.3f} ms and computed in {1e3 * size * costs.per_token:.3f} ms"
    logger.info("a block of %d tokens is %s (%s tier)", size, words, tier.name)
    if not pays:
        logger.warning("the %s tier of the KV cache is not used: computing is as fast as reading", tier.name)
        tier.close()
    return pays


def engine_to_measure(machine: WorkerResources, tokens: int) -> Engine:
    """Return what computes a prompt of so many tokens and evicts nothing: the worker's engine, or where its pool is
    full of what the process before left, one with the same model and a pool of its own."""
    num_blocks = 1 + machine.layout.blocks_for(tokens + 1)
    if num_blocks - 1 <= len(machine.pool.free_list):
        return machine.engine
    storage = KVStorage(machine.layout, num_blocks, machine.storage.device)
    scheduler = Scheduler(BlockPool(num_blocks), machine.layout, 1, StepBudget(tokens), prefix_caching=False)
    return Engine(machine.engine.runner.beside(storage), scheduler)


def seconds_of_token(engine: Engine, tokens: int) -> float:
    """Return the seconds to compute one token of a prompt of so many. No prefix is looked for or kept."""
    params, seconds = SamplingParams(max_tokens=1, seed=0, temperature=0.0), 0.0
    prefix, enabled = engine.scheduler.prefix, engine.scheduler.prefix.enabled
    prefix.enabled = False
    for _ in range(PROMPTS):
        begun = time.perf_counter()
        engine.add(Sequence("measured", [0] * max(1, tokens), params, frozenset()))
        while engine.has_work:
            engine.step()
        seconds = time.perf_counter() - begun
    prefix.enabled = enabled
    return seconds / max(1, tokens)
