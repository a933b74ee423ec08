# SPDX-License-Identifier: Apache-2.0
"""A 64-bit number for the bytes of a block: not cryptographic, made to notice stale, torn or shifted memory.

A block is cut into rows of at most 2 KiB; the digest is the sum of all rows' sums, each times an odd weight of its own.
Every changed byte changes it, and every shift; what is not noticed is that words within one row changed places, which
copying cannot do. Multiplying every word instead costs a third of the speed.

Blocks are digested in host memory, by threads that copy them, so this is one core's work and done without torch's
threads: one pass that reads a block and writes nothing.
"""

from collections.abc import Iterable
from math import gcd

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
LARGEST = (1 << 63) - 1
ROW_WORDS = 256


def digest_weights(words: int) -> NDArray[np.int64]:
    """One odd multiplier for each row of a block of so many 64-bit words, int64 [rows], the same in every process."""
    rows = words // gcd(words, ROW_WORDS)
    mixed: NDArray[np.int64] = np.arange(1, rows + 1, dtype=np.int64) * np.int64(GOLDEN - (1 << 64))
    odd: NDArray[np.int64] = (mixed ^ (mixed >> 29)) | 1
    return odd


def block_digests(pool: NDArray[np.uint8], blocks: Iterable[int], weights: NDArray[np.int64]) -> list[int]:
    """pool uint8 [num_blocks, bytes], bytes a multiple of 8; returns a number in [0, 2^63) for each of `blocks`: the
    sum modulo 2^64 with the top bit, which a word's own top bit alone can change, folded in."""
    rows = pool.view(np.int64).reshape(len(pool), len(weights), -1)
    sums = [int(np.dot(np.add.reduce(rows[block], axis=1), weights)) for block in blocks]
    return [(total & LARGEST) ^ (total < 0) for total in sums]
