# SPDX-License-Identifier: Apache-2.0
"""The types of GGUF files (ggml/src/ggml-common.h) whose blocks are whole numbers with scales, taken apart; those with
codebooks are in ggml_codebooks.py.

A function takes uint8 [blocks, bytes] and gives numbers [blocks, numbers], int8 or uint8 below 64, and for each group
of 16, 32 or 256 neighbouring numbers a scale, float32 [blocks, groups]. A weight is its scale times its number, plus an
offset of its group; or its scale times the sum of its number and a whole number, which is the same in all blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pontil.runtime.loaders.facts.weight_forms import FP4
from pontil.runtime.loaders.gguf.ggml_codebooks import SCALES, Parts, half_at
from pontil.runtime.loaders.gguf.ggml_codebooks import levels as codebook_levels
from pontil.runtime.loaders.gguf.packed_formats import UNEVEN

Split = Callable[[Tensor], tuple[Tensor, Tensor, Tensor | int]]


def signed(bytes_: Tensor) -> Tensor:
    return bytes_.contiguous().view(torch.int8)


def fields(packed: Tensor, bits: int, dim: int = -1) -> Tensor:
    """The fields of so many bits of each byte, the lowest of all bytes first: `dim` becomes as many times longer."""
    return torch.cat([(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)], dim)


def nibbles(packed: Tensor) -> Tensor:
    """Low halves of all bytes, then high halves: [..., bytes] to [..., 2 * bytes]."""
    return fields(packed, 4)


def fifth_bits(packed: Tensor) -> Tensor:
    """The bits of 4 bytes, lowest first, each worth 16: [blocks, 4] to [blocks, 32]."""
    bits = torch.stack([(packed >> bit) & 1 for bit in range(8)], dim=-1)
    return bits.view(-1, 32) << 4


def from_table(table: tuple[int, ...], numbers: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.int8)[numbers.int()]


def places_in(table: Tensor, numbers: Tensor) -> Tensor:
    """The places in a table, uint8, at which these numbers stand, int8."""
    places = torch.zeros(256, dtype=torch.uint8)
    places[table.view(torch.uint8).int()] = torch.arange(len(table), dtype=torch.uint8)
    return places[numbers.view(torch.uint8).int()]


def scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and minima of the 8 groups of 32 numbers in a block of Q4_K or Q5_K, float32 [blocks, 8] each.

    Bytes 4 to 16 hold 6 bits for each: groups 0 to 3 in the low bits of the first and the second 4 bytes, groups 4 to 7
    with their low 4 bits in the last 4 bytes and their high 2 bits on top of the others.
    """
    first, second, last = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (last & 15) | ((first >> 6) << 4)), dim=1)
    minima = torch.cat((second & 63, (last >> 4) | ((second >> 6) << 4)), dim=1)
    return half_at(blocks, 0) * scales.float(), half_at(blocks, 2) * minima.float()


def q4_0(blocks: Tensor) -> tuple[Tensor, Tensor, int]:
    return nibbles(blocks[:, 2:]), half_at(blocks, 0), -8


def q4_1(blocks: Tensor) -> Parts:
    return nibbles(blocks[:, 4:]), half_at(blocks, 0), half_at(blocks, 2)


def q5_0(blocks: Tensor) -> tuple[Tensor, Tensor, int]:
    return nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6]), half_at(blocks, 0), -16


def q5_1(blocks: Tensor) -> Parts:
    return nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8]), half_at(blocks, 0), half_at(blocks, 2)


def q8_0(blocks: Tensor) -> tuple[Tensor, Tensor, int]:
    return signed(blocks[:, 2:]), half_at(blocks, 0), 0


def q2_k(blocks: Tensor) -> Parts:
    """Split Q2_K: a scale and a minimum of 4 bits for each group of 16; each half of a block is 4 runs of 32 numbers in
    as many bytes."""
    packed, numbers = blocks[:, :16], fields(blocks[:, 16:80].reshape(-1, 2, 32), 2)
    scales, minima = half_at(blocks, 80) * (packed & 15).float(), half_at(blocks, 82) * (packed >> 4).float()
    return numbers.view(-1, 256), scales, -minima


def q3_k(blocks: Tensor) -> tuple[Tensor, Tensor, int]:
    """Split Q3_K: low 2 bits as those of Q2_K, high bits in 32 bytes, one bit of each byte for a run of 32; of 16
    scales the low 4 bits in 8 bytes, the high 2 bits in 4."""
    low, high = fields(blocks[:, 32:96].reshape(-1, 2, 32), 2).view(-1, 256), fields(blocks[:, :32], 1)
    scales = signed(nibbles(blocks[:, 96:104]) | fields(blocks[:, 104:108], 2) << 4) - 32
    return low | high << 2, half_at(blocks, 108) * scales.float(), -4


def q4_k(blocks: Tensor) -> Parts:
    scales, minima = scales_and_minima(blocks)
    return nibbles(blocks[:, 16:].reshape(-1, 4, 32)).view(-1, 256), scales, -minima


def q5_k(blocks: Tensor) -> Parts:
    scales, minima = scales_and_minima(blocks)
    low = nibbles(blocks[:, 48:].reshape(-1, 4, 32)).view(-1, 256)
    return low | fields(blocks[:, 16:48], 1) << 4, scales, -minima


def q6_k(blocks: Tensor) -> tuple[Tensor, Tensor, int]:
    """Split Q6_K. Each half of a block: 4 runs of 32 numbers, low 4 bits in 64 bytes, high 2 bits in 32 bytes."""
    low, high = nibbles(blocks[:, :128].reshape(-1, 2, 64)), fields(blocks[:, 128:192].reshape(-1, 2, 32), 2)
    return (low | high << 4).view(-1, 256), half_at(blocks, 208) * signed(blocks[:, 192:208]).float(), -32


def iq4_nl(blocks: Tensor) -> tuple[Tensor, Tensor, int]:
    return from_table(UNEVEN, nibbles(blocks[:, 2:])), half_at(blocks, 0), 0


def iq4_xs(blocks: Tensor) -> tuple[Tensor, Tensor, int]:
    """Split IQ4_XS: of 8 scales the high 2 bits in 2 bytes, the low 4 bits in 4."""
    low, high = (
        torch.stack([(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)], dim=-1).flatten(1)
        for packed, bits in ((blocks[:, 4:8], 4), (blocks[:, 2:4], 2))
    )
    scales = half_at(blocks, 0) * (signed(low | high << 4) - 32).float()
    return from_table(UNEVEN, nibbles(blocks[:, 8:].reshape(-1, 8, 16))).view(-1, 256), scales, 0


def mxfp4(blocks: Tensor) -> tuple[Tensor, Tensor, int]:
    """Split MXFP4: an exponent with a bias of 127, and floats of 4 bits, which are halves of whole numbers here."""
    exponents = blocks[:, :1].int()
    bits = torch.where(exponents < 2, 0x200000 << exponents, (exponents - 1) << 23)
    return from_table(FP4, nibbles(blocks[:, 1:])), bits.view(torch.float32), 0


SPLITS: dict[int, Split] = {
    2: q4_0, 3: q4_1, 6: q5_0, 7: q5_1, 8: q8_0, 10: q2_k, 11: q3_k, 12: q4_k, 13: q5_k, 14: q6_k, 20: iq4_nl,
    23: iq4_xs, 39: mxfp4,
}  # fmt: skip
"""By the numbers of their types."""


def dequantize(split: Split, blocks: Tensor) -> Tensor:
    """The weights, float32 [blocks, numbers], in the operations and the order of ggml's own reference, so that the bits
    are the same."""
    numbers, scales, offset = split(blocks)
    grouped = numbers.view(*scales.shape, numbers.shape[1] // scales.shape[1]).float()
    if isinstance(offset, int):
        return (scales.unsqueeze(-1) * (grouped + offset)).view(numbers.shape)
    return (scales.unsqueeze(-1) * grouped + offset.unsqueeze(-1)).view(numbers.shape)


def with_offsets(split: Split, blocks: Tensor) -> Parts:
    """The numbers, and for each group its scale and its offset."""
    numbers, scales, offset = split(blocks)
    return numbers, scales, scales * offset if isinstance(offset, int) else offset


LEVELS: dict[int, Callable[[Tensor], Parts]] = {
    **{number: partial(with_offsets, split) for number, split in SPLITS.items()},
    **{number: partial(codebook_levels, number) for number in SCALES},
}


def k_steps(scale: int, minimum: int | None) -> Callable[[Tensor], Tensor]:
    """The function that gives the steps of a block's scales and minima, float32 [blocks, 2], from these places."""

    def steps(blocks: Tensor) -> Tensor:
        one = half_at(blocks, scale)
        return torch.cat((one, torch.zeros_like(one) if minimum is None else half_at(blocks, minimum)), dim=1)

    return steps


STEPS: dict[int, Callable[[Tensor], Tensor]] = {12: k_steps(0, 2), 14: k_steps(208, None)}
"""Types whose scales and offsets are whole numbers of steps, for 256 numbers."""
