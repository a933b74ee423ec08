# SPDX-License-Identifier: Apache-2.0
"""Weights as the kernels for products read them. This module needs no Triton, so every machine may import it."""

from dataclasses import dataclass

import torch
from torch import Tensor

PLAIN, FLOAT8, FLOAT4, BYTES, NIBBLES, TABLED = 0, 1, 2, 3, 4, 5
FLOAT4_GROUP = 32


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """One matrix, or equal ones behind each other, in memory of a device.

    `numbers` [..., outputs, inputs] are of the model's type, or floats of 8 bits (e4m3) with `scales` float32
    [..., outputs, groups], one for each `group` inputs. Floats of 4 bits (MXFP4) are `numbers` uint8 [..., outputs,
    inputs / 2], the earlier one in the lower half of a byte, with `scales` uint8, exponents plus 127, for 32 inputs
    each. Whole numbers are int8 [..., outputs, inputs], or uint8 [..., outputs, inputs / 2] in the same places, with
    `scales` int32 [..., outputs, groups + 2]: a scale and an offset of 16 bits for each `group`, and an output's
    units of both, float32. If they are `tabled`, they are places in a table of 16 numbers int8, which stands behind the
    units as 4 words of each output. `bias` [..., outputs] is of any floats. With an `order`, int64 [inputs], inputs
    stand in that order.
    """

    numbers: Tensor
    bias: Tensor | None = None
    scales: Tensor | None = None
    group: int = 1
    order: Tensor | None = None
    tabled: bool = False

    @property
    def kind(self) -> int:
        if self.scales is None:
            return PLAIN
        if self.scales.dtype == torch.uint8:
            return FLOAT4
        if self.tabled:
            return TABLED
        return {torch.int8: BYTES, torch.uint8: NIBBLES}.get(self.numbers.dtype, FLOAT8)

    @property
    def outputs(self) -> int:
        return self.numbers.shape[-2]

    @property
    def inputs(self) -> int:
        return self.numbers.shape[-1] * (2 if self.kind in (FLOAT4, NIBBLES, TABLED) else 1)

    @property
    def words(self) -> Tensor:
        """The numbers in a type that every processor can load."""
        return self.numbers.view(torch.uint8) if self.kind == FLOAT8 else self.numbers
