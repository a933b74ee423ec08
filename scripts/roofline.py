# SPDX-License-Identifier: Apache-2.0
"""The most that this machine can do, and what a model's step needs of it."""

import time
from collections.abc import Callable

import torch

import app  # noqa: F401
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.models.config import ModelConfig

ROUNDS, REPEATS = 1 << 18, 15
# Larger than any cache, so that it is read from memory.
READ_BYTES = 512 << 20


def best(call: Callable[[], object], repeats: int, now: Callable[[], float] = time.perf_counter) -> float:
    """Return the least seconds of some calls, by this clock."""
    found = []
    for _ in range(repeats):
        start = now()
        call()
        found.append(now() - start)
    return min(found)


def peak(library: KernelLibrary, dtype: torch.dtype) -> float:
    """Measure the multiply-adds per second that the kernels' threads can do."""
    done = library.multiply_adds(dtype, ROUNDS)
    return done / best(lambda: library.multiply_adds(dtype, ROUNDS), REPEATS)


def bandwidth(library: KernelLibrary, now: Callable[[], float] = time.perf_counter) -> float:
    """Measure the bytes per second that the kernels' threads can read from memory, by the clock of the steps that it is
    compared with."""
    memory = torch.ones(READ_BYTES // 4)
    return READ_BYTES / best(lambda: library.read(memory), 5, now)


def products(config: ModelConfig) -> tuple[int, int]:
    """Return the multiply-adds of one row with the weights of all layers, and with those of the head. Attention's own
    are not counted, nor are experts, of which a row uses some."""
    heads = config.num_heads + config.num_kv_heads
    attention = 2 * heads * config.head_dim * config.hidden_size
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * (attention + mlp), config.vocab_size * config.hidden_size
