# SPDX-License-Identifier: Apache-2.0
"""A 64-bit number for the bytes of a block: not cryptographic, made to notice stale, torn or shifted memory.

Blocks are digested in host memory, by threads that copy them, so this is one core's work and done without torch's
threads: one pass that reads a block and writes nothing.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
LARGEST = (1 << 63) - 1


def digest_weights(words: int) -> NDArray[np.int64]:
    """One odd multiplier per 64-bit word, int64 [words], the same in every process."""
    mixed: NDArray[np.int64] = np.arange(1, words + 1, dtype=np.int64) * np.int64(GOLDEN - (1 << 64))
    odd: NDArray[np.int64] = (mixed ^ (mixed >> 29)) | 1
    return odd


def block_digests(pool: NDArray[np.uint8], blocks: Iterable[int], weights: NDArray[np.int64]) -> list[int]:
    """pool uint8 [num_blocks, bytes], bytes a multiple of 8; returns a number in [0, 2^63) for each of `blocks`: the
    weighted sum of its words modulo 2^64, with the top bit, which a word's own top bit alone can change, folded in."""
    words = pool.view(np.int64)
    sums = [int(np.dot(words[block], weights)) for block in blocks]
    return [(total & LARGEST) ^ (total < 0) for total in sums]
