# SPDX-License-Identifier: Apache-2.0
"""The memory that a model takes of this machine, and the part of it that a step reads."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from pontil.runtime.cache.layout import DTYPE_BYTES, choose_kv_dtype, layout_for
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.loaders.facts.weight_forms import EMBEDDING, HEAD
from pontil.runtime.loaders.gguf.packed_formats import NumberFormat, choose_quantization
from pontil.runtime.loaders.level_formats import may_have_levels
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.probe.footprint import CPU, MemoryDemand, dtype_of
from pontil.runtime.probe.host_memory import host_room
from pontil.runtime.probe.weight_memory import EXPERTS, Ranks, formats_of, used_share, weight_memory
from pontil.runtime.worker.start.loading import CPU_KV_SHARE, MOST_CPU_KV_BYTES


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes of a worker's rank: its `weights`, of which a step of one row `read`s some; its KV cache of `kv` bytes
    with so many `tokens`, each of `token_bytes`. The weights have the format `form`, most of them, and `quantization`
    is how they become it."""

    weights: int
    read: int
    kv: int
    tokens: int
    token_bytes: int
    quantization: str
    dtype: str
    form: NumberFormat


def capacity(path: Path, config: ModelConfig, demand: MemoryDemand, has_kernels: bool) -> Capacity:
    """Return the capacity of the last worker of a launch, which is one that decodes if any is. Raises ModelError."""
    layout, devices = demand.layouts[-1], demand.workers[-1]
    on_host = CPU in devices
    has_kernels = has_kernels and on_host and demand.has_kernels
    dtype = dtype_of(config, demand)
    has_levels = may_have_levels(path, config, not on_host)
    quantization = choose_quantization(demand.quantization, has_levels, dtype, has_kernels, not on_host)
    ranks, size = Ranks(layout.size, demand.row_parallel, layout.data_parallel), DTYPE_BYTES[dtype]
    weights = weight_memory(path, config, quantization, size, ranks, on_host, has_kernels)
    cells = choose_kv_dtype(demand.kv_cache_dtype, dtype)
    kv = layout_for(config, demand.block_size, cells, ranks=ranks.divisions)
    room = host_room().bytes if on_host else demand.gpu_memory.get(devices[0], 0)
    kv_bytes = demand.kv_cache_memory or kv_room(room, weights.held, on_host)
    # Block 0 is padding.
    tokens = max(0, kv_bytes // kv.block_bytes - 1) * kv.block_size
    formats = formats_of(path, config, quantization, size, has_kernels, not on_host)
    held = Counter[NumberFormat]()
    for name, shape in products(config).items():
        own = formats.of(name, shape)
        held[own] += math.prod(shape)
    form = replace(held.most_common(1)[0][0])
    token_bytes = -(-kv.block_bytes // kv.block_size)
    return Capacity(weights.held, weights.read, kv_bytes, tokens, token_bytes, quantization, dtype, form)


def kv_room(room: int, weights: int, on_host: bool) -> int:
    """Return the bytes of KV that a worker takes if none are given: of a host a share, of a GPU about all that weights
    leave."""
    left = max(0, room - weights)
    return min(MOST_CPU_KV_BYTES, int(left * CPU_KV_SHARE)) if on_host else left


def products(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the weights that a token of a prompt is multiplied with: of its last one the head too, which counts
    little."""
    shapes = tensor_shapes(config)
    return {name: shape for name, shape in shapes.items() if len(shape) == 2 and name not in (EMBEDDING, HEAD)}


def count_weights(config: ModelConfig) -> tuple[int, int]:
    """Return the numbers of a model's weights, and of those that a token goes through."""
    sizes = {name: math.prod(shape) for name, shape in tensor_shapes(config).items()}
    used = sum(int(size * used_share(name, config)) for name, size in sizes.items())
    return sum(sizes.values()), used if any(EXPERTS in name for name in sizes) else sum(sizes.values())


def context_bytes(config: ModelConfig, token_bytes: int, context: int) -> int:
    """Return the bytes of keys and values that a step reads behind so many positions: of layers with a window, those in
    it."""
    layers = [layer for layer in range(config.num_layers) if not config.is_recurrent(layer)]
    seen = sum(min(config.window(layer) or context, context) for layer in layers)
    return token_bytes * seen // max(1, len(layers))
