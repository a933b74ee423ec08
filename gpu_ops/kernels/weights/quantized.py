# SPDX-License-Identifier: Apache-2.0
"""Quantized weights of less than 16 bits: integers, with a scale and an offset for each group of inputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.weights.structures import BYTES, EIGHTS, FOURS, NIBBLES, SIXES

# The largest weight in its output's unit: 2^12, less the most that rounding of scale, offset and weight adds.
MOST_WEIGHT = 4093
# A weight is scale * number / STEP + offset; of floats another step, since kernels take an eighth of them.
STEP, FLOAT_STEP, MOST_SCALE = 128, 1024, 32767
LARGEST_FLOAT = 448.0
# Inputs of a block of a k-quant.
BLOCK = 256
SMALLEST_UNIT = 1e-30
# Outputs that are quantized or packed at once, a multiple of a group of the kernels' outputs.
PIECE = 64
# Entries of a table of numbers.
TABLE = 16


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """A weight [outputs, inputs] is `scales * numbers + offsets`. numbers are int8, or uint8 below 128; scales and
    offsets float32 [outputs, groups], each for as many neighbouring inputs: a multiple of 16, or all of them. Those of
    k-quants are whole multiples of two `steps` for 256 inputs, float32 [outputs, 2 * blocks] (blocks.py). With a
    `table`, int8 of at most 16, numbers stand there, and what is stored are their places, uint8. If they are `floats`
    (e4m3), their bits are stored, uint8. With an `order`, int64 [inputs], which kernels of CPUs have not, inputs stand
    in that order."""

    numbers: Tensor
    scales: Tensor
    offsets: Tensor
    steps: Tensor | None = None
    table: Tensor | None = None
    floats: bool = field(default=False, kw_only=True)
    order: Tensor | None = field(default=None, kw_only=True)

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.numbers.shape[1] // self.scales.shape[1]

    @property
    def packs_in_halves(self) -> bool:
        """Return whether numbers fit 4 bits as they are."""
        return self.table is None and self.numbers.dtype == torch.uint8 and int(self.numbers.max()) < 16

    @property
    def kind(self) -> int:
        if self.steps is not None:
            return FOURS if self.group == 32 else SIXES
        if self.floats:
            return EIGHTS
        return NIBBLES if self.table is not None or self.packs_in_halves else BYTES

    @property
    def levels(self) -> Tensor:
        """The numbers, whether they are stored or their places are, or their bits."""
        if self.floats:
            return self.numbers.view(torch.float8_e4m3fn).float()
        return self.numbers if self.table is None else self.table[self.numbers.int()]

    def rows(self, own: range) -> "QuantizedWeights":
        """Some outputs of the weight: a view."""
        return self.chosen(slice(own.start, own.stop))

    def chosen(self, outputs: slice | Tensor) -> "QuantizedWeights":
        steps = None if self.steps is None else self.steps[outputs]
        return replace(
            self, numbers=self.numbers[outputs], scales=self.scales[outputs], offsets=self.offsets[outputs], steps=steps
        )

    def columns(self, own: range) -> "QuantizedWeights":
        """Some inputs of the weight, a multiple of 16. A part of whole blocks of k-quants is of such blocks again."""
        group = math.gcd(self.group, own.start, len(own))
        same = self if group == self.group else self.alike(None, group)
        groups = slice(own.start // group, own.stop // group)
        steps = None
        if self.steps is not None and own.start % BLOCK == 0 and len(own) % BLOCK == 0:
            steps = self.steps[:, 2 * own.start // BLOCK : 2 * own.stop // BLOCK]
        numbers = self.numbers[:, own.start : own.stop].clone()
        scales, offsets = same.scales[:, groups], same.offsets[:, groups]
        return QuantizedWeights(numbers, scales, offsets, steps, self.table, floats=self.floats)

    def dense(self) -> Tensor:
        """The dequantized weight in float32."""
        scales, offsets = (factors.repeat_interleave(self.group, dim=1) for factors in (self.scales, self.offsets))
        whole = scales * self.levels.float() + offsets
        return whole if self.order is None else torch.empty_like(whole).index_copy_(1, self.order, whole)

    def alike(self, dtype: torch.dtype | None, group: int) -> "QuantizedWeights":
        """The same weight with numbers of a type, or as they are stored, and with smaller groups."""
        times = self.group // group
        scales, offsets = (factors.repeat_interleave(times, dim=1) for factors in (self.scales, self.offsets))
        if dtype is None:
            return replace(self, scales=scales, offsets=offsets, steps=None)
        return QuantizedWeights(self.levels.to(dtype), scales, offsets, order=self.order)


def per_channel(weight: Tensor) -> QuantizedWeights:
    """Quantize to signed bytes, one scale an output, rounded to nearest: some outputs at a time, so that there are few
    temporaries."""
    numbers, scales = torch.empty(weight.shape, dtype=torch.int8), torch.empty(len(weight), 1)
    for part, own, scale in zip(weight.split(PIECE), numbers.split(PIECE), scales.split(PIECE), strict=True):
        exact = part.float()
        torch.div(exact.abs().amax(1, keepdim=True), 127, out=scale)
        own.copy_((exact / scale.clamp(min=1e-30)).round_())
    return QuantizedWeights(numbers, scales, torch.zeros_like(scales))


def stacked(parts: Sequence[QuantizedWeights]) -> QuantizedWeights:
    """One weight with the outputs of all parts, whose kinds may differ, if they can be one."""
    group = math.gcd(*(part.group for part in parts))
    steps = [part.steps for part in parts if part.steps is not None and part.group == group]
    dtype, table = common_numbers(parts)
    same = [part.alike(dtype, group) for part in parts]
    numbers, scales, offsets = (
        torch.cat([getattr(part, name) for part in same]) for name in ("numbers", "scales", "offsets")
    )
    all_steps = torch.cat(steps) if len(steps) == len(parts) else None
    first = parts[0]
    return QuantizedWeights(numbers, scales, offsets, all_steps, table, floats=first.floats, order=first.order)


def can_stack(parts: Sequence[QuantizedWeights]) -> bool:
    """Return whether several weights can be one: all of them are floats or none is, and inputs stand alike."""
    first = parts[0].order
    orders = [part.order for part in parts]
    same = all(one is first if one is None or first is None else torch.equal(one, first) for one in orders)
    return same and len({part.floats for part in parts}) == 1


def common_numbers(parts: Sequence[QuantizedWeights]) -> tuple[torch.dtype | None, Tensor | None]:
    """The type that the numbers of all parts can have; None where they are as they are stored: floats, or places in one
    table, which is returned too."""
    if parts[0].floats:
        return None, None
    tables = [part.table for part in parts]
    first = tables[0]
    if first is not None and all(one is not None and torch.equal(one, first) for one in tables):
        return None, first
    signed = any(part.table is not None or part.numbers.dtype == torch.int8 for part in parts)
    return torch.int8 if signed else torch.uint8, None


def in_full_range(levels: QuantizedWeights) -> QuantizedWeights:
    """The same weight, with floats of each group as large as they can be, so that kernels, which round these to whole
    numbers, lose nothing of small ones. Others are as they are."""
    if not levels.floats:
        return levels
    numbers = levels.levels.unflatten(1, (-1, levels.group))
    most = numbers.abs().amax(2, keepdim=True)
    times = torch.exp2((LARGEST_FLOAT / most).log2().floor()).nan_to_num(1.0, 1.0, 1.0)
    floats = (numbers * times).flatten(1).to(torch.float8_e4m3fn)
    return replace(levels, numbers=floats.view(torch.uint8), scales=levels.scales / times.squeeze(2))


def packed_numbers(numbers: Tensor, kind: int) -> Tensor:
    """Pack numbers [outputs, inputs] to int32 [outputs, words]. A word holds pairs of inputs: of each pair the earlier
    one in its lower half, later pairs in higher bits."""
    pairs, bits = (4, 4) if kind == NIBBLES else (2, 8)
    split = numbers.view(len(numbers), -1, pairs, 2).to(torch.int32) & ((1 << bits) - 1)
    parts = [split[:, :, pair, half] << (bits * pair + 16 * half) for pair in range(pairs) for half in range(2)]
    return reduce(torch.bitwise_or, parts)


def packed_scales(levels: QuantizedWeights) -> tuple[Tensor, Tensor]:
    """int32 [outputs, groups] with a scale in the low half and an offset in the high half, both whole numbers of 16
    bits, and the unit of each output, float32 [outputs]. Where a scale is not finite, the unit is not."""
    scales, offsets = levels.scales, levels.offsets
    # An output's unit depends on that output alone, so that it is the same in a part of the weight that has some of the
    # outputs. A part that has some of the inputs has a unit of these, and so rounds its scales otherwise.
    extremes, step = torch.aminmax(levels.levels, dim=1), FLOAT_STEP if levels.floats else STEP
    ends = torch.stack([offsets, *(scales * number.float()[:, None] + offsets for number in extremes)])
    highest = torch.maximum(ends.abs().amax((0, 2)) / MOST_WEIGHT, scales.abs().amax(1) * step / MOST_SCALE)
    units = highest.clamp(min=SMALLEST_UNIT)
    low, high = (
        (part / units[:, None]).nan_to_num(0.0, 0.0, 0.0).round_().to(torch.int32) for part in (scales * step, offsets)
    )
    return (low & 0xFFFF) | (high << 16), units
