# SPDX-License-Identifier: Apache-2.0
"""The least memory that the workers of a launch take, known from the model's files before anything is loaded.

torch is not imported: this runs before the first worker starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pontil.runtime.cache.layout import DTYPE_BYTES, KVLayout, choose_kv_dtype
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.draft_layers import find_draft_layer
from pontil.runtime.loaders.hf_quantization import FP4_GROUP
from pontil.runtime.loaders.layout import ROPE_FACTORS, tensor_shapes
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.partition import check_division
from pontil.runtime.probe.host_memory import NO_LIMIT, FreeMemory, gibibytes, host_room

CPU = "cpu"
# Parts of the names of tensors that every rank of a worker holds whole, and of those with a row for each KV head.
WHOLE = ("embed_tokens", "norm", "mlp.gate.", "q_a_proj", "kv_a_proj", ROPE_FACTORS)
KV_HEADS = ("k_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """The settings that all workers of a launch share, as in WorkerConfig; for each worker its ranks' devices; and
    the free bytes of those GPUs where that is known. A worker that is `drafting` also has the draft model. Each has
    `kv_tier_memory` bytes of host memory besides."""

    dtype: str
    kv_cache_dtype: str
    quantization: str
    max_model_len: int | None
    kv_cache_memory: int | None
    block_size: int
    workers: Sequence[Sequence[str]]
    gpu_memory: Mapping[str, int]
    speculative_model: str | None = None
    drafting: Sequence[bool] = ()
    kv_tier_memory: int = 0


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one rank of a worker on one device, in bytes: a worker on a GPU has its tier on the host. Never
    more than it really takes: a launch refused for this would have swapped at best."""

    weights: int
    kv: int
    tier: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.tier

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(self.weights + other.weights, self.kv + other.kv, self.tier + other.tier)

    @property
    def words(self) -> str:
        tier = f"{gibibytes(self.tier)} of --kv-tier"
        if not self.weights:
            return tier
        words = f"{gibibytes(self.weights)} of weights and {gibibytes(self.kv)} of KV cache"
        return f"{words} and {tier}" if self.tier else words


def check_memory(path: Path, demand: MemoryDemand, draft: Path | None = None) -> None:
    """Raise ModelError when the model cannot be divided as it is planned, or when its weights and the KV cache of one
    sequence do not fit the free memory, for all ranks on a device together, with the draft model where there is
    one."""
    if not demand.workers:
        return
    config = read_config(path)
    sizes = dict.fromkeys(len(worker) for worker in demand.workers)
    for size in sizes:
        check_division(config, size)
    parts = {size: footprint(path, config, demand, size) for size in sizes}
    extra = Footprint(0, 0) if draft is None else draft_footprint(path, draft, demand)
    tier, on_host = Footprint(0, 0, demand.kv_tier_memory), [CPU] if demand.kv_tier_memory else []
    for device in dict.fromkeys([*(device for worker in demand.workers for device in worker), *on_host]):
        room = host_room() if device == CPU else FreeMemory(demand.gpu_memory.get(device, NO_LIMIT))
        held = [
            parts[len(worker)] + extra if guesses else parts[len(worker)]
            for worker, guesses in zip(demand.workers, drafting(path, demand, draft), strict=True)
            for rank in worker
            if rank == device
        ]
        if on_host and device == CPU:
            held = [one + tier for one in held] + [tier for worker in demand.workers if CPU not in worker]
        if sum(one.total for one in held) > room.bytes:
            where = room.where if device == CPU else device
            raise ModelError(refusal(path, device, held, sizes, f"{where} has {gibibytes(room.bytes)} left"))


def drafting(path: Path, demand: MemoryDemand, draft: Path | None) -> list[bool]:
    """Return for each worker whether it has what guesses: a draft layer is also where prompts are computed."""
    if draft is not None and find_draft_layer(path, draft) is not None:
        return [len(worker) == 1 for worker in demand.workers]
    return list(demand.drafting) or [False] * len(demand.workers)


def memory_by_ranks(path: Path, demand: MemoryDemand) -> dict[int, str]:
    """Return for each size of a worker, in ranks, the memory of one of them in words. Raises ModelError as
    `check_memory` does."""
    check_memory(path, demand)
    config, sizes = read_config(path), sorted({len(worker) for worker in demand.workers})
    return {size: footprint(path, config, demand, size).words for size in sizes}


def draft_footprint(target: Path, path: Path, demand: MemoryDemand) -> Footprint:
    """Return what a draft model, or a draft layer, takes of a worker. A given size of the KV cache includes it."""
    layer = find_draft_layer(target, path)
    if layer is not None or (demand.quantization == "gguf" and path.suffix != ".gguf"):
        demand = replace(demand, quantization="none")
    made = footprint(path, read_config(path) if layer is None else layer.config, demand)
    if layer is not None:
        # The footprint of its configuration has an embedding and a head, which are the target's.
        dtype = layer.config.dtype if demand.dtype == "auto" else demand.dtype
        made = replace(made, weights=layer.count_weights() * (1 if layer.config.weight_block else DTYPE_BYTES[dtype]))
    return made if demand.kv_cache_memory is None else replace(made, kv=0)


def refusal(path: Path, device: str, held: Sequence[Footprint], sizes: Mapping[int, None], left: str) -> str:
    """Return the sentence that refuses what the processes of these sizes would hold on a device."""
    most = max(held, key=lambda one: one.total)
    what = "worker" if max(sizes) == 1 else "rank"
    each = "each" if len(set(held)) == 1 else "or less each"
    needed = (
        f"{len(held)} {what}s with {most.words} {each} need" if len(held) > 1 else f"a {what} with {most.words} needs"
    )
    fewer = "start fewer workers (--role mixed is one), " if len(held) > 1 else ""
    more = "" if device == CPU else "divide it over more GPUs with +, "
    return (
        f"the model {path.name} is too large: {needed} {gibibytes(sum(one.total for one in held))}, and {left}: {fewer}"
        f"{more}choose a smaller model or --quantization, or lower {'--kv-tier, ' if most.tier else ''}"
        "--kv-cache-memory or --max-model-len"
    )


def footprint(path: Path, config: ModelConfig, demand: MemoryDemand, ranks: int = 1) -> Footprint:
    """Return the footprint of one of a worker's ranks. Raise ModelError for types or a block size that are not
    possible."""
    dtype = config.dtype if demand.dtype == "auto" else demand.dtype
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"--dtype {dtype} is not possible: choose one of {', '.join(DTYPE_BYTES)}")
    cells = choose_kv_dtype(demand.kv_cache_dtype, dtype)
    layout = KVLayout(
        demand.block_size, config.num_layers, config.num_kv_heads, config.head_dim, cells, ranks=ranks,
        planes=config.kv_planes,
    )  # fmt: skip
    # Without a requested length a sequence is as long as fits, so one block is enough. Block 0 is padding.
    blocks = layout.blocks_for(demand.max_model_len or 1) + 1
    kv = demand.kv_cache_memory or blocks * layout.block_bytes
    return Footprint(weight_bytes(path, config, demand, DTYPE_BYTES[dtype], ranks), kv)


def weight_bytes(path: Path, config: ModelConfig, demand: MemoryDemand, number_bytes: int, ranks: int) -> int:
    if demand.quantization == "gguf":
        return path.stat().st_size // ranks
    numbers = sum(math.prod(shape) // divisor(name, config, ranks) for name, shape in tensor_shapes(config).items())
    if config.weight_block == (1, FP4_GROUP):
        return numbers // 2
    return numbers * (1 if demand.quantization == "int8" or config.weight_block else number_bytes)


def divisor(name: str, config: ModelConfig, ranks: int) -> int:
    """Return the number of parts of a tensor of which a rank holds one."""
    if any(part in name for part in WHOLE):
        return 1
    return min(ranks, config.num_kv_heads) if any(part in name for part in KV_HEADS) else ranks
