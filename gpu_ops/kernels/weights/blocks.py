# SPDX-License-Identifier: Apache-2.0
"""Weights in blocks of 256 inputs, packed as csrc/blocks.h describes: scales and minima are whole numbers of steps."""

from functools import reduce

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.weights.quantized import BLOCK, QuantizedWeights
from pontil.gpu_ops.kernels.weights.structures import FOURS


def packed_blocks(weight: QuantizedWeights) -> tuple[Tensor, Tensor]:
    """int32 [outputs, words] of a weight with steps, and a factor of each output, float32 [outputs]: 1, or NaN where a
    scale is not finite."""
    assert weight.steps is not None
    outputs = len(weight.numbers)
    numbers, steps = weight.numbers.view(outputs, -1, BLOCK), weight.steps.view(outputs, -1, 2)
    scales, minima = (
        (factors.view(outputs, steps.shape[1], -1) / step[..., None]).nan_to_num(0.0, 0.0, 0.0).round_().to(torch.int32)
        for factors, step in ((weight.scales, steps[..., 0]), (-weight.offsets, steps[..., 1]))
    )
    pack = fours if weight.kind == FOURS else sixes
    finite = torch.isfinite(weight.scales).all(1) & torch.isfinite(weight.offsets).all(1)
    words = pack(numbers, scales, minima, steps.nan_to_num(0.0, 0.0, 0.0)).flatten(1)
    return words, torch.where(finite, 1.0, torch.nan)


def fours(numbers: Tensor, scales: Tensor, minima: Tensor, steps: Tensor) -> Tensor:
    """Levels of 4 bits, scales and minima of 6: the words of each block, [..., 36]."""
    low, high = scales.split(4, dim=-1)
    below, above = minima.split(4, dim=-1)
    sixes_and_twos = (low | (high >> 4 << 6), below | (above >> 4 << 6), (high & 15) | ((above & 15) << 4))
    heads = [steps.half().view(torch.int32), *(in_words(part) for part in sixes_and_twos)]
    return torch.cat([*heads, pairs_in_words(numbers, 4)], dim=-1)


def sixes(numbers: Tensor, scales: Tensor, minima: Tensor, steps: Tensor) -> Tensor:
    """Levels of 6 bits, scales of 8 with their signs: the words of each block, [..., 53]. Offsets are -32 scales."""
    quarters = [
        parts.unflatten(-1, (4, -1)) for parts in (pairs_in_words(numbers & 15, 4), pairs_in_words(numbers >> 4, 2))
    ]
    heads = [steps[..., :1].contiguous().view(torch.int32), scales.to(torch.int8).view(torch.int32)]
    return torch.cat([*heads, torch.cat(quarters, dim=-1).flatten(-2)], dim=-1)


def in_words(numbers: Tensor) -> Tensor:
    """Four numbers of 8 bits in each word, [..., 4 * words], the first one in the lowest bits."""
    return numbers.to(torch.uint8).view(torch.int32)


def pairs_in_words(numbers: Tensor, bits: int) -> Tensor:
    """Levels uint8 [..., 256] as words. The sixteens of inputs that share words have `bits` of each byte, the first the
    lowest; a word's bytes are of the inputs 2i, 2i + 8, 2i + 1 and 2i + 9 of each."""
    per_byte = 8 // bits
    split = numbers.unflatten(-1, (-1, per_byte, 2, 4, 2))
    parts = [split[..., place, :, :, :] << (bits * place) for place in range(per_byte)]
    bytes_: Tensor = reduce(torch.bitwise_or, parts)
    return bytes_.movedim(-3, -1).flatten(-2).view(torch.int32).flatten(-3)
