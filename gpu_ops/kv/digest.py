# SPDX-License-Identifier: Apache-2.0
"""A 64-bit checksum of a block's bytes: not cryptographic, made to detect stale, torn or shifted memory.

A block is cut into rows of at most 2 KiB; the digest is the sum of all rows' sums, each times an odd weight of its own.
It detects every changed byte and every shift; it does not detect words of one row that changed places, which copying
cannot cause. Multiplying every word instead would cost a third of the speed.

Blocks are digested in host memory by the threads that copy them, so the work is done on one core without torch's
threads, in one pass that reads a block and writes nothing. Blocks in the memory of a device are digested there.
"""

from collections.abc import Iterable
from math import gcd

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
LARGEST = (1 << 63) - 1
ROW_WORDS = 256
# Words of a block up to which all blocks are digested in one call.
TOGETHER = 256


def digest_weights(words: int, run: int | None = None) -> NDArray[np.int64]:
    """One odd multiplier for each row of a block of so many 64-bit words, int64 [rows], the same in every process. In a
    block of separate pieces, `run` is how many words of it follow each other: no row spans two pieces."""
    rows = words // gcd(run or words, ROW_WORDS)
    mixed: NDArray[np.int64] = np.arange(1, rows + 1, dtype=np.int64) * np.int64(GOLDEN - (1 << 64))
    odd: NDArray[np.int64] = (mixed ^ (mixed >> 29)) | 1
    return odd


def block_digests(pool: NDArray[np.uint8], blocks: Iterable[int], weights: NDArray[np.int64]) -> list[int]:
    """Return a number in [0, 2^63) for each of `blocks` of the pool, uint8 [num_blocks, …, bytes], bytes a multiple of
    8: the sum modulo 2^64 with the top bit, which a word's own top bit alone can change, folded in."""
    words = pool.view(np.int64)
    rows = words.reshape(*words.shape[:-1], -1, words[0].size // len(weights))
    if words[0].size <= TOGETHER:
        # The calls cost more than the words: what is copied for it stays in the cache.
        sums = np.add.reduce(rows[list(blocks)], axis=-1).reshape(-1, len(weights)).dot(weights).tolist()
    else:
        sums = [int(np.dot(np.add.reduce(rows[block], axis=-1).ravel(), weights)) for block in blocks]
    return [(total & LARGEST) ^ (total < 0) for total in sums]


def digests_of(pool: Tensor, blocks: Tensor, weights: Tensor) -> Tensor:
    """The same numbers for blocks where they are, without a copy to the host: int64 [len(blocks)] for blocks int64 of
    the pool [num_blocks, …], whole or some of its heads, and weights int64 [rows], all on one device."""
    if pool.device.type != "cpu":
        from pontil.gpu_ops.triton import blocks as kernels

        totals = kernels.block_digests(pool, blocks, weights)
    else:
        rows = pool[blocks].flatten(1).view(torch.int64).view(len(blocks), len(weights), -1)
        totals = (rows.sum(-1) * weights).sum(-1)
    return (totals & LARGEST) ^ (totals < 0)
