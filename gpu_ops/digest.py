# SPDX-License-Identifier: Apache-2.0
"""A 64-bit number for the bytes of a block: not cryptographic, made to notice stale, torn or shifted memory."""

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15


def digest_weights(words: int) -> Tensor:
    """One odd multiplier per 64-bit word, int64 [words], the same in every process."""
    index = torch.arange(1, words + 1, dtype=torch.int64)
    mixed = index * (GOLDEN - (1 << 64))
    return (mixed ^ (mixed >> 29)) | 1


def block_digests(blocks: Tensor, weights: Tensor) -> list[int]:
    """blocks uint8 [n, bytes], bytes a multiple of 8; returns n numbers in [0, 2^63)."""
    sums = (blocks.view(torch.int64) * weights).sum(-1)
    return (sums & ((1 << 63) - 1)).tolist()
