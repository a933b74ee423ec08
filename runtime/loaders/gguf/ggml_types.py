# SPDX-License-Identifier: Apache-2.0
"""The number formats of GGUF files (ggml/src/ggml-common.h): blocks of so many numbers in so many bytes.

Reading gives float32. A `blocks` is uint8 [blocks, bytes]; results are [blocks, numbers]. Types that a CPU's kernels
multiply are read here; those with codebooks by the gguf package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pontil.runtime.loaders.gguf.block_sizes import BLOCKS
from pontil.runtime.loaders.gguf.ggml_codebooks import by_package
from pontil.runtime.loaders.gguf.ggml_levels import SPLITS, dequantize


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


FLOATS = {
    0: GgmlType("F32", 1, 4, float32),
    1: GgmlType("F16", 1, 2, float16),
    30: GgmlType("BF16", 1, 2, bfloat16),
}
WITH_SCALES = {
    2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
    20: "IQ4_NL", 23: "IQ4_XS", 39: "MXFP4",
}  # fmt: skip
FROM_CODEBOOKS = {
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0",
}  # fmt: skip
"""Types whose numbers are places in tables of vectors, or of three values."""
GGML_TYPES: dict[int, GgmlType] = {
    **FLOATS,
    **{
        number: GgmlType(name, *BLOCKS[number], partial(dequantize, SPLITS[number]))
        for number, name in WITH_SCALES.items()
    },
    **{number: GgmlType(name, *BLOCKS[number], partial(by_package, number)) for number, name in FROM_CODEBOOKS.items()},
}
OTHER_NAMES = {24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 40: "NVFP4", 41: "Q1_0"}
"""Types that exist and are not read here, for the message that says so."""


def type_name(kind: int) -> str:
    return OTHER_NAMES.get(kind, f"type {kind}")
