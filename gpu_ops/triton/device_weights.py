# SPDX-License-Identifier: Apache-2.0
"""Weights as the kernels for products read them. This module needs no Triton, so every machine may import it."""

from dataclasses import dataclass

import torch
from torch import Tensor

PLAIN, FLOAT8, FLOAT4 = 0, 1, 2
FLOAT4_GROUP = 32


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """One matrix, or equal ones behind each other, in memory of a device.

    `numbers` [..., outputs, inputs] are of the model's type, or floats of 8 bits (e4m3) with `scales` float32
    [..., outputs, groups], one for each `group` inputs. Floats of 4 bits (MXFP4) are `numbers` uint8 [..., outputs,
    inputs / 2], the earlier one in the lower half of a byte, with `scales` uint8, exponents plus 127, for 32 inputs
    each. `bias` [..., outputs] is of any floats.
    """

    numbers: Tensor
    bias: Tensor | None = None
    scales: Tensor | None = None
    group: int = 1

    @property
    def kind(self) -> int:
        if self.scales is None:
            return PLAIN
        return FLOAT4 if self.scales.dtype == torch.uint8 else FLOAT8

    @property
    def outputs(self) -> int:
        return self.numbers.shape[-2]

    @property
    def inputs(self) -> int:
        return self.numbers.shape[-1] * (2 if self.kind == FLOAT4 else 1)

    @property
    def words(self) -> Tensor:
        """The numbers in a type that every processor can load."""
        return self.numbers if self.kind == PLAIN else self.numbers.view(torch.uint8)
