# SPDX-License-Identifier: Apache-2.0
"""The blocks of `ggml_types`, taken apart: a weight is a scale times a whole number, plus an offset.

Functions take uint8 [blocks, bytes] and give numbers [blocks, numbers], int8 or uint8 below 64, and for each group of
16 or 32 neighbouring numbers a scale and an offset, float32 [blocks, groups].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pontil.runtime.loaders.gguf.ggml_types import fifth_bits, half_at, nibbles, scales_and_minima

Parts = tuple[Tensor, Tensor, Tensor]


def q4_0(blocks: Tensor) -> Parts:
    scale = half_at(blocks, 0)
    return nibbles(blocks[:, 2:]), scale, scale * -8


def q4_1(blocks: Tensor) -> Parts:
    return nibbles(blocks[:, 4:]), half_at(blocks, 0), half_at(blocks, 2)


def q5_0(blocks: Tensor) -> Parts:
    scale = half_at(blocks, 0)
    return nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6]), scale, scale * -16


def q5_1(blocks: Tensor) -> Parts:
    return nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8]), half_at(blocks, 0), half_at(blocks, 2)


def q8_0(blocks: Tensor) -> Parts:
    scale = half_at(blocks, 0)
    return blocks[:, 2:].contiguous().view(torch.int8), scale, torch.zeros_like(scale)


def q4_k(blocks: Tensor) -> Parts:
    scales, minima = scales_and_minima(blocks)
    return nibbles(blocks[:, 16:].reshape(-1, 4, 32)).view(-1, 256), scales.squeeze(-1), -minima.squeeze(-1)


def q5_k(blocks: Tensor) -> Parts:
    scales, minima = scales_and_minima(blocks)
    low = nibbles(blocks[:, 48:].reshape(-1, 4, 32)).view(-1, 8, 32)
    high = torch.stack([(blocks[:, 16:48] >> group) & 1 for group in range(8)], dim=1)
    return (low | (high << 4)).view(-1, 256), scales.squeeze(-1), -minima.squeeze(-1)


def q6_k(blocks: Tensor) -> Parts:
    low = nibbles(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    high = torch.stack([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2)
    scales = half_at(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    return (low | (high << 4)).view(-1, 256), scales, scales * -32


LEVELS: dict[int, Callable[[Tensor], Parts]] = {
    2: q4_0, 3: q4_1, 6: q5_0, 7: q5_1, 8: q8_0, 12: q4_k, 13: q5_k, 14: q6_k,
}  # fmt: skip
"""By the numbers of their types."""
