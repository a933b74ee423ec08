# SPDX-License-Identifier: Apache-2.0
"""The forms that weights have in memory once they are packed for a CPU's kernels. No torch here: plans are checked by
it before a process loads that."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from pontil.runtime.loaders.gguf.names import names_of
from pontil.runtime.loaders.gguf.parts import read_parts
from pontil.runtime.models.config import ModelConfig

SCALE_BYTES = 4
"""A scale and an offset, of 16 bits each."""
WIDE = 8
"""Bits of a number for which there is no table."""
MIXED_BITS = 16
"""Bits of the numbers that whole numbers and floats of 8 bits become in one product."""
BLOCK = 256
"""Numbers of a k-quant's block."""
ROUTER = "mlp.gate."
LATENTS = "self_attn.kv_b_proj"
"""The weight that becomes two of the model's type, which are multiplied head by head."""
AUTO = "auto"
NO_GGUF = (
    "--quantization gguf needs a GGUF file, or a directory with whole numbers in groups of a multiple of 16: use int8, "
    "or leave it out"
)


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """Numbers of so many bits. Whole numbers have a scale and an offset for each `group` of neighbours, and so have
    `floats` of 8 bits; other floats have no groups. Those of a k-quant that is kept as it is have blocks of so many
    bytes. With a `table` of numbers that are not those from 0 on, it is their places there that have these bits. Inputs
    may have an `own_order` in each weight."""

    bits: int
    group: int | None = None
    block_bytes: int | None = None
    table: tuple[int, ...] | None = None
    floats: bool = False
    own_order: bool = False

    def columns(self, inputs: int) -> NumberFormat:
        """Return the format of a part of a weight that has so many of its inputs: only whole blocks stay some."""
        if self.group is None or (self.block_bytes is not None and inputs % BLOCK == 0):
            return self
        return replace(self, group=math.gcd(self.group, inputs), block_bytes=None)

    def on_device(self) -> NumberFormat:
        """Return the format of the same numbers as kernels for devices have them: without blocks."""
        return replace(self, block_bytes=None)

    def size(self, count: int) -> int:
        """Return the bytes of so many numbers."""
        if self.block_bytes is not None:
            return self.block_bytes * count // BLOCK
        scales = 0 if self.group is None else SCALE_BYTES * count // self.group
        return self.bits * count // 8 + scales


UNEVEN = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The numbers of IQ4_NL and IQ4_XS by their 4 bits (ggml/src/ggml-common.h)."""


def of_both_signs(*numbers: int) -> tuple[int, ...]:
    return (*(-one for one in reversed(numbers)), *numbers)


NINTHS, THREE = of_both_signs(1, 7, 9), of_both_signs(8, 25, 43)
TABLES = {
    16: THREE, 17: THREE, 18: of_both_signs(4, 12, 20, 28, 36, 44, 52, 62), 19: NINTHS, 20: UNEVEN,
    21: of_both_signs(*range(1, 16, 2)), 22: THREE, 23: UNEVEN, 29: NINTHS,
    39: (0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12),
}  # fmt: skip
"""The numbers that weights of a type may have, where they are at most 16 and not those from 0 on: by the numbers of
ggml types, those of `ggml_levels`."""
GGUF_FORMATS = {
    2: NumberFormat(4, 32), 3: NumberFormat(4, 32), 6: NumberFormat(8, 32), 7: NumberFormat(8, 32),
    8: NumberFormat(8, 32), 10: NumberFormat(4, 16), 11: NumberFormat(4, 16), 12: NumberFormat(4, 32, 144),
    13: NumberFormat(8, 32), 14: NumberFormat(8, 16, 212), 34: NumberFormat(4, 256), 35: NumberFormat(4, 256),
    **{kind: NumberFormat(4, 16 if kind in (17, 22, 29) else 32, table=table) for kind, table in TABLES.items()},
}  # fmt: skip
"""By the numbers of ggml types: those of `ggml_levels`. The kernels have numbers of 4 bits, by a table or not, and of
8, and blocks of Q4_K and Q6_K."""


def choose_quantization(asked: str, has_levels: bool, dtype: str, has_kernels: bool, on_device: bool = False) -> str:
    """Return the quantization of a model's weights, which its file has as whole numbers or not: with `auto` a file's
    own numbers where kernels multiply them, those of a CPU in bfloat16, those of a device in any type."""
    if asked != AUTO:
        return asked
    multiplies = on_device or (has_kernels and dtype == "bfloat16")
    return "gguf" if has_levels and multiplies else "none"


def gguf_formats(path: Path, config: ModelConfig) -> dict[str, NumberFormat]:
    """Return the formats of the weights that a GGUF file holds as whole numbers, by Hugging Face's names; the others
    become floats. Raises ModelError."""
    formats: dict[str, NumberFormat] = {}
    for name, tensor in read_parts(path).header.tensors.items():
        if tensor.kind in GGUF_FORMATS and len(tensor.shape) > 1:
            formats |= dict.fromkeys(names_of(name, tensor.shape, config), GGUF_FORMATS[tensor.kind])
    return {name: one for name, one in formats.items() if not is_float(name)}


def is_float(name: str) -> bool:
    """Return whether a weight becomes floats, however a file has it."""
    return ROUTER in name or LATENTS in name


def stacked(formats: list[NumberFormat]) -> NumberFormat:
    """Return the format of several weights in one product: floats if one of them is, or some are of 8 bits, else their
    own if all have it, else the wider numbers in groups that divide all of theirs. So a layer's Q6_K values make its
    Q4_K queries and keys wider too."""
    if len(set(formats)) == 1:
        return formats[0]
    if len({one.floats for one in formats if one.group is not None}) > 1:
        return NumberFormat(MIXED_BITS)
    groups = [one.group for one in formats if one.group is not None]
    if len(groups) < len(formats):
        return next(one for one in formats if one.group is None)
    bits = max(one.bits if one.table is None else WIDE for one in formats)
    return NumberFormat(bits, math.gcd(*groups), floats=formats[0].floats)
