# SPDX-License-Identifier: Apache-2.0
"""The number formats of GGUF files (ggml/src/ggml-common.h): blocks of so many numbers in so many bytes.

Reading gives float32, in the operations and the order of ggml's own reference, so that the bits are the same. A
`blocks` is uint8 [blocks, bytes]; results are [blocks, numbers].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A block: `numbers` in `size` bytes."""

    name: str
    numbers: int
    size: int
    read: Callable[[Tensor], Tensor]


def float32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32)


def float16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float16).float()


def bfloat16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.bfloat16).float()


def half_at(blocks: Tensor, at: int) -> Tensor:
    """The 16-bit float of each block that starts at byte `at`, float32 [blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def nibbles(packed: Tensor) -> Tensor:
    """Low halves of all bytes, then high halves: [..., bytes] to [..., 2 * bytes]."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def fifth_bits(packed: Tensor) -> Tensor:
    """The bits of 4 bytes, lowest first, each worth 16: [blocks, 4] to [blocks, 32]."""
    bits = torch.stack([(packed >> bit) & 1 for bit in range(8)], dim=-1)
    return bits.view(-1, 32) << 4


def q4_0(blocks: Tensor) -> Tensor:
    return half_at(blocks, 0) * (nibbles(blocks[:, 2:]).float() - 8)


def q4_1(blocks: Tensor) -> Tensor:
    return half_at(blocks, 0) * nibbles(blocks[:, 4:]).float() + half_at(blocks, 2)


def q5_0(blocks: Tensor) -> Tensor:
    return half_at(blocks, 0) * ((nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6])).float() - 16)


def q5_1(blocks: Tensor) -> Tensor:
    numbers = nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8])
    return half_at(blocks, 0) * numbers.float() + half_at(blocks, 2)


def q8_0(blocks: Tensor) -> Tensor:
    return half_at(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and minima of the 8 groups of 32 numbers in a block of Q4_K or Q5_K, float32 [blocks, 8, 1] each.

    Bytes 4 to 16 hold 6 bits for each: groups 0 to 3 in the low bits of the first and the second 4 bytes, groups 4 to 7
    with their low 4 bits in the last 4 bytes and their high 2 bits on top of the others.
    """
    first, second, last = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (last & 15) | ((first >> 6) << 4)), dim=1)
    minima = torch.cat((second & 63, (last >> 4) | ((second >> 6) << 4)), dim=1)
    return (
        (half_at(blocks, 0) * scales.float()).unsqueeze(-1),
        (half_at(blocks, 2) * minima.float()).unsqueeze(-1),
    )


def q4_k(blocks: Tensor) -> Tensor:
    scales, minima = scales_and_minima(blocks)
    numbers = nibbles(blocks[:, 16:].reshape(-1, 4, 32)).view(-1, 8, 32)
    return (scales * numbers.float() - minima).view(-1, 256)


def q5_k(blocks: Tensor) -> Tensor:
    scales, minima = scales_and_minima(blocks)
    low = nibbles(blocks[:, 48:].reshape(-1, 4, 32)).view(-1, 8, 32)
    high = torch.stack([(blocks[:, 16:48] >> group) & 1 for group in range(8)], dim=1)
    return (scales * (low | (high << 4)).float() - minima).view(-1, 256)


def q6_k(blocks: Tensor) -> Tensor:
    """Unpack Q6_K. Each half of a block: 4 runs of 32 numbers, low 4 bits in 64 bytes, high 2 bits in 32 bytes."""
    low = nibbles(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    high = torch.stack([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2)
    scales = half_at(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    numbers = (low | (high << 4)).view(-1, 16, 16).float() - 32
    return (scales.unsqueeze(-1) * numbers).view(-1, 256)


GGML_TYPES: dict[int, GgmlType] = {
    0: GgmlType("F32", 1, 4, float32),
    1: GgmlType("F16", 1, 2, float16),
    2: GgmlType("Q4_0", 32, 18, q4_0),
    3: GgmlType("Q4_1", 32, 20, q4_1),
    6: GgmlType("Q5_0", 32, 22, q5_0),
    7: GgmlType("Q5_1", 32, 24, q5_1),
    8: GgmlType("Q8_0", 32, 34, q8_0),
    12: GgmlType("Q4_K", 256, 144, q4_k),
    13: GgmlType("Q5_K", 256, 176, q5_k),
    14: GgmlType("Q6_K", 256, 210, q6_k),
    30: GgmlType("BF16", 1, 2, bfloat16),
}
OTHER_NAMES = {
    10: "Q2_K", 11: "Q3_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
"""Types that exist and are not read here, for the message that says so."""


def type_name(kind: int) -> str:
    return OTHER_NAMES.get(kind, f"type {kind}")
