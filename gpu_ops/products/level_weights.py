# SPDX-License-Identifier: Apache-2.0
"""Whole numbers of 4 and 8 bits as kernels for devices multiply them: one layout for every form that a file has them
in."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.kernels.weights.quantized import MOST_SCALE, SMALLEST_UNIT, TABLE, QuantizedWeights
from pontil.gpu_ops.products.scaled_weights import ScaledWeights, StoredWeights
from pontil.gpu_ops.triton.device_weights import DeviceWeights

# Words of an output behind those of its groups: the units of its scales and of its offsets.
UNITS = 2


@dataclass(frozen=True, slots=True)
class LevelWeights:
    """Numbers with a scale and an offset for each `group` of neighbouring inputs: `numbers` int8 [outputs, inputs], or
    uint8 [outputs, inputs / 2], two in a byte, the earlier in its lower half; `factors` int32 [outputs, groups + 2],
    with a scale in the lower and an offset in the upper half of a word, whole numbers both, and behind those of all
    groups the units of the output's scales and of its offsets, the bits of float32. If they are `tabled`, numbers are
    places in a table of 16 signed bytes, 4 more words. With an `order`, int64 [inputs], inputs stand in that order."""

    numbers: Tensor
    factors: Tensor
    group: int
    order: Tensor | None = None
    tabled: bool = False

    @property
    def shape(self) -> torch.Size:
        outputs, words = self.numbers.shape
        return torch.Size((outputs, words if self.numbers.dtype == torch.int8 else 2 * words))

    def rows(self, own: range) -> "LevelWeights":
        """Some outputs of the weight: a view."""
        kept = slice(own.start, own.stop)
        return replace(self, numbers=self.numbers[kept], factors=self.factors[kept])

    def part(self, outputs: slice | Tensor, dtype: torch.dtype) -> Tensor:
        numbers = self.numbers[outputs]
        if numbers.dtype == torch.uint8:
            numbers = torch.stack((numbers & 15, numbers >> 4), dim=-1).flatten(1)
        groups, stated = self.shape[1] // self.group, self.factors[outputs]
        words = stated[:, :groups].repeat_interleave(self.group, dim=1)
        of_scales, of_offsets = bits_of(stated[:, groups : groups + UNITS]).split(1, dim=1)
        if self.tabled:
            table = stated[:, groups + UNITS :].contiguous().view(torch.int8)
            numbers = table.gather(1, numbers.long())
        whole: Tensor = numbers * (words << 16 >> 16) * of_scales + (words >> 16) * of_offsets
        if self.order is not None:
            whole = torch.empty_like(whole).index_copy_(1, self.order, whole)
        return whole.to(dtype)

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.part(slice(None), dtype)

    def on_device(self, dtype: torch.dtype, bias: Tensor | None) -> DeviceWeights:
        return DeviceWeights(self.numbers, bias, self.factors, self.group, self.order, self.tabled)


def bits_of(units: Tensor) -> Tensor:
    return units.contiguous().view(torch.float32)


def in_units(values: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of 16 bits, int32 [outputs, groups], and the unit that an output has them in, float32 [outputs,
    1]. Where a value is not finite, the unit is not."""
    units = values.abs().amax(1, keepdim=True).clamp(min=SMALLEST_UNIT) / MOST_SCALE
    return (values / units).nan_to_num(0.0, 0.0, 0.0).round().int(), units


def on_device(levels: QuantizedWeights, device: torch.device) -> StoredWeights:
    """Lay quantized weights out for kernels there, with their bytes and what their groups have."""
    if levels.floats:
        numbers = levels.numbers.view(torch.float8_e4m3fn).to(device)
        return ScaledWeights(numbers, levels.scales.to(device), levels.group)
    (scales, scale_unit), (offsets, offset_unit) = in_units(levels.scales), in_units(levels.offsets)
    words = (scales & 0xFFFF) | (offsets << 16)
    parts = [words, scale_unit.view(torch.int32), offset_unit.view(torch.int32)]
    order = None if levels.order is None else levels.order.to(device)
    even = levels.numbers.shape[1] % 2 == 0
    tabled = even and levels.table is not None
    if even and levels.table is not None:
        table = F.pad(levels.table, (0, TABLE - len(levels.table)))
        parts.append(table.view(torch.int32).expand(len(words), -1))
    if tabled or (even and levels.packs_in_halves):
        earlier, later = levels.numbers.unflatten(1, (-1, 2)).unbind(2)
        numbers = earlier | later << 4
    else:
        numbers = levels.levels.to(torch.int8)
    return LevelWeights(numbers.to(device), torch.cat(parts, dim=1).to(device), levels.group, order, tabled)
