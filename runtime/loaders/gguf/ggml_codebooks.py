# SPDX-License-Identifier: Apache-2.0
"""The types of GGUF files whose numbers are places in tables of vectors, or of three values, taken apart.

A weight is its group's scale times a whole number of at most 62 (IQ1: eighths of -9 to 9). So the scales are read here,
and the numbers are found by dividing the weights that the gguf package reads, which gives whole numbers exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Parts = tuple[Tensor, Tensor, Tensor]


def by_package(number: int, blocks: Tensor) -> Tensor:
    # Few files need it, and it takes a tenth of a second.
    from gguf import GGMLQuantizationType, quants

    return torch.from_numpy(quants.dequantize(blocks.numpy(), GGMLQuantizationType(number)))


def half_at(blocks: Tensor, at: int) -> Tensor:
    """The 16-bit float of each block that starts at this byte, float32 [blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def halves(blocks: Tensor, at: int, count: int) -> Tensor:
    """Numbers of 4 bits in so many bytes, the lower of each byte first: float32 [blocks, 2 * count]."""
    packed = blocks[:, at : at + count]
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).float()


def upper(blocks: Tensor, at: int, step: int) -> Tensor:
    """The upper 4 bits of 8 bytes that are so far apart, float32 [blocks, 8]."""
    return (blocks[:, at : at + 8 * step : step] >> 4).float()


def iq2(blocks: Tensor, scales: Tensor) -> Tensor:
    return half_at(blocks, 0) * (0.5 + scales) * 0.25


def iq1_m(blocks: Tensor) -> Tensor:
    """The scales of IQ1_M: 16 of 3 bits in four words of 16, whose upper 4 bits are a 16-bit float together."""
    words = blocks[:, 48:56].contiguous().view(torch.int16).int() & 0xFFFF
    joined = sum((words[:, place] >> 12) << (4 * place) for place in range(4))
    assert isinstance(joined, Tensor)
    whole = joined.to(torch.int16).view(torch.float16).float()[:, None]
    return whole * (2 * torch.stack([(words >> shift) & 7 for shift in (0, 3, 6, 9)], dim=-1).flatten(1) + 1) / 8


SCALES: dict[int, Callable[[Tensor], Tensor]] = {
    16: lambda blocks: iq2(blocks, upper(blocks, 9, 8)),
    17: lambda blocks: iq2(blocks, halves(blocks, 66, 8)),
    18: lambda blocks: half_at(blocks, 0) * (0.5 + upper(blocks, 69, 4)) * 0.5,
    19: lambda blocks: half_at(blocks, 0) * (2 * (upper(blocks, 35, 2) % 8) + 1) / 8,
    21: lambda blocks: half_at(blocks, 0) * (1 + 2 * halves(blocks, 106, 4)),
    22: lambda blocks: iq2(blocks, halves(blocks, 74, 8)),
    29: iq1_m,
    34: lambda blocks: half_at(blocks, 52),
    35: lambda blocks: half_at(blocks, 64),
}
"""The scales of a block's groups, float32 [blocks, groups], by the numbers of their types: IQ2_XXS, IQ2_XS, IQ3_XXS,
IQ1_S, IQ3_S, IQ2_S, IQ1_M, TQ1_0 and TQ2_0."""
THREE_VALUES = (34, 35)
"""Types whose numbers are -1, 0 and 1."""


def levels(kind: int, blocks: Tensor) -> Parts:
    """The numbers of blocks uint8 [blocks, bytes], int8, or uint8 of 0 to 3; each group's scale and its offset."""
    scales = SCALES[kind](blocks)
    weights = by_package(kind, blocks).view(*scales.shape, -1)
    numbers = (weights / scales.unsqueeze(-1)).nan_to_num(0.0, 0.0, 0.0).round_().to(torch.int8).flatten(1)
    if kind in THREE_VALUES:
        return (numbers + 1).to(torch.uint8), scales, -scales
    return numbers, scales, torch.zeros_like(scales)
