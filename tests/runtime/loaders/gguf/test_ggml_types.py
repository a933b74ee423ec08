# SPDX-License-Identifier: Apache-2.0
"""Each type of numbers, compared with the gguf package and with a computation of one number at a time."""

import struct
from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch

from pontil.runtime.loaders.gguf.ggml_types import GGML_TYPES, OTHER_NAMES, GgmlType

BLOCKS = 50


def half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def nibble(packed: bytes, index: int, half_size: int) -> int:
    """Number `index` of a run in which the low halves of `half_size` bytes come first."""
    return packed[index] & 15 if index < half_size else packed[index - half_size] >> 4


def bit(packed: bytes, index: int) -> int:
    return packed[index // 8] >> index % 8 & 1


def six_bits(block: bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of a group of 32 in Q4_K and Q5_K."""
    packed = block[4:16]
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return (low & 15) | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4


def k_number(block: bytes, index: int, high: int, packed: bytes) -> float:
    group = index // 32
    scale, minimum = six_bits(block, group)
    low = nibble(packed[group // 2 * 32 :], index % 64, 32)
    return half(block, 0) * scale * (low + high) - half(block, 2) * minimum


def q6_number(block: bytes, index: int) -> float:
    part, within = divmod(index, 128)
    low = nibble(block[part * 64 :], within, 64)
    high = block[128 + part * 32 + within % 32] >> within // 32 * 2 & 3
    scale = int(struct.unpack_from("<b", block, 192 + index // 16)[0])
    return half(block, 208) * scale * ((low | high << 4) - 32)


def two_bits(packed: bytes, index: int) -> int:
    """Number `index` of Q2_K and the low bits of Q3_K: of each half of a block 4 runs of 32."""
    part, within = divmod(index, 128)
    return packed[part * 32 + within % 32] >> within // 32 * 2 & 3


def q2_number(block: bytes, index: int) -> float:
    group = block[index // 16]
    return half(block, 80) * (group & 15) * two_bits(block[16:], index) - half(block, 82) * (group >> 4)


def q3_number(block: bytes, index: int) -> float:
    group = index // 16
    scale = nibble(block[96:], group, 8) | (block[104 + group % 4] >> group // 4 * 2 & 3) << 4
    number = two_bits(block[32:], index) | (block[index % 32] >> index // 32 & 1) << 2
    return half(block, 108) * (scale - 32) * (number - 4)


def uneven(number: int) -> int:
    return (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)[number]


def iq4_xs_number(block: bytes, index: int) -> float:
    group = index // 32
    high = int.from_bytes(block[2:4], "little")
    scale = block[4 + group // 2] >> group % 2 * 4 & 15 | (high >> group * 2 & 3) << 4
    return half(block, 0) * (scale - 32) * uneven(nibble(block[8 + group * 16 :], index % 32, 16))


def fp4(number: int) -> float:
    """A sign, an exponent of 2 bits, a bit."""
    exponent, part = number >> 1 & 3, number & 1
    size = (1 << exponent) / 2 * (1 + part / 2) if exponent else part / 2
    return -size if number & 8 else size


SCALAR: dict[str, Callable[[bytes, int], float]] = {
    "F32": lambda block, index: float(struct.unpack("<f", block)[0]),
    "F16": lambda block, index: half(block, 0),
    "BF16": lambda block, index: float(struct.unpack("<f", b"\0\0" + block)[0]),
    "Q4_0": lambda block, index: half(block, 0) * (nibble(block[2:], index, 16) - 8),
    "Q4_1": lambda block, index: half(block, 0) * nibble(block[4:], index, 16) + half(block, 2),
    "Q5_0": lambda block, index: half(block, 0) * (nibble(block[6:], index, 16) + 16 * bit(block[2:], index) - 16),
    "Q5_1": lambda block, index: (
        half(block, 0) * (nibble(block[8:], index, 16) + 16 * bit(block[4:], index)) + half(block, 2)
    ),
    "Q8_0": lambda block, index: half(block, 0) * struct.unpack_from("<b", block, 2 + index)[0],
    "Q4_K": lambda block, index: k_number(block, index, 0, block[16:]),
    "Q5_K": lambda block, index: k_number(block, index, (block[16 + index % 32] >> index // 32 & 1) * 16, block[48:]),
    "Q6_K": q6_number,
    "Q2_K": q2_number,
    "Q3_K": q3_number,
    "IQ4_NL": lambda block, index: half(block, 0) * uneven(nibble(block[2:], index, 16)),
    "IQ4_XS": iq4_xs_number,
    "MXFP4": lambda block, index: 2.0 ** (block[0] - 127) * fp4(nibble(block[1:], index, 16)),
}
HALVES = {"F16": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2),
          "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,), "IQ4_XS": (0,),
          "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ1_S": (0,), "TQ1_0": (52,),
          "TQ2_0": (64,)}  # fmt: skip


def random_blocks(kind: GgmlType) -> torch.Tensor:
    """Random bytes except for the 16-bit floats, which are small and finite."""
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (BLOCKS, kind.size), dtype=torch.uint8, generator=generator)
    for at in HALVES.get(kind.name, ()):
        blocks[:, at : at + 2] = torch.randn(BLOCKS, 1, generator=generator).half().view(torch.uint8)
    if kind.name == "MXFP4":
        blocks[:, 0] = torch.randint(100, 140, (BLOCKS,), generator=generator)
    if kind.name == "IQ1_M":
        # The bits of its 16-bit float are the high ones of four words.
        blocks[:, 55] = 0x30
    if kind.name in ("F32", "BF16"):
        dtype = torch.float32 if kind.name == "F32" else torch.bfloat16
        blocks = torch.randn(BLOCKS, 1, generator=generator).to(dtype).view(torch.uint8)
    return blocks


@pytest.mark.parametrize("kind", [one for one in GGML_TYPES.values() if one.name in SCALAR], ids=lambda kind: kind.name)
def test_reads_what_the_format_says(kind: GgmlType) -> None:
    blocks = random_blocks(kind)
    read = kind.read(blocks)
    assert read.dtype == torch.float32 and read.shape == (BLOCKS, kind.numbers)
    expected = [[SCALAR[kind.name](bytes(block), index) for index in range(kind.numbers)] for block in blocks.tolist()]
    torch.testing.assert_close(read.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", GGML_TYPES.values(), ids=lambda kind: kind.name)
def test_has_the_bits_of_the_gguf_package(kind: GgmlType) -> None:
    blocks = random_blocks(kind)
    theirs = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind.name])
    assert torch.equal(kind.read(blocks), torch.from_numpy(np.ascontiguousarray(theirs)))


def test_the_smallest_scales_of_mxfp4_are_exact() -> None:
    blocks = torch.full((256, 17), 0x11, dtype=torch.uint8)
    blocks[:, 0] = torch.arange(256)
    kind = next(one for one in GGML_TYPES.values() if one.name == "MXFP4")
    assert kind.read(blocks)[:, 0].tolist() == [2.0 ** (exponent - 128) for exponent in range(256)]


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "TQ1_0", "TQ2_0"])
def test_known_numbers_come_back(name: str) -> None:
    numbers = torch.linspace(-1, 1, 512)
    stored = torch.from_numpy(gguf.quants.quantize(numbers.numpy(), gguf.GGMLQuantizationType[name]))
    kind = GGML_TYPES[int(gguf.GGMLQuantizationType[name])]
    error = (kind.read(stored.view(torch.uint8).view(-1, kind.size)).view(-1) - numbers).abs().max()
    most = {"F16": 0.001, "BF16": 0.005, "Q8_0": 0.005, "MXFP4": 0.26, "TQ1_0": 0.51, "TQ2_0": 0.51}
    assert error < most.get(name, 0.08)


def test_numbers_and_sizes_are_those_of_the_gguf_package() -> None:
    for number, kind in GGML_TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == kind.name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (kind.numbers, kind.size)
    assert all(gguf.GGMLQuantizationType(number).name == name for number, name in OTHER_NAMES.items())


@pytest.mark.parametrize("kind", [one for one in GGML_TYPES.values() if one.name in SCALAR], ids=lambda kind: kind.name)
def test_no_blocks_are_no_numbers(kind: GgmlType) -> None:
    assert kind.read(torch.empty(0, kind.size, dtype=torch.uint8)).shape == (0, kind.numbers)
