# SPDX-License-Identifier: Apache-2.0
"""Products by torch's kernels for floats of 8 bits and for grouped experts, in the place of Triton's (decision 124)."""

from collections.abc import Collection
from typing import Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.activation import clamped_swiglu, silu_and_mul
from pontil.gpu_ops.products.experts import GroupedExperts
from pontil.gpu_ops.products.scaled_weights import ScaledLinear, ScaledWeights, StoredWeights
from pontil.gpu_ops.triton.device_weights import PLAIN, DeviceWeights

EXPERTS, PRODUCTS = "experts=torch", "products=torch"
# Sizes of products that torch's kernels take are multiples of these: pieces of 16 bytes.
FLOAT8_STEP, GROUPED_STEP = 16, 8
LARGEST_FLOAT8, SMALLEST = 448.0, 1e-12
# Rows of a comparison: more than a tile of experts, and no multiple of anything.
COMPARED_ROWS = 37


class Compared(Protocol):
    """A product that another one of the same weights stands beside."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def difference(self) -> float:
        """The largest difference from Triton's results for random rows, relative to the largest of these."""


def random_rows(inputs: int, device: torch.device) -> Tensor:
    drawn = torch.randn(COMPARED_ROWS, inputs, generator=torch.Generator().manual_seed(1))
    return drawn.to(device=device, dtype=torch.bfloat16)


def largest_difference(made: Tensor, reference: Tensor) -> float:
    return float((made.float() - reference.float()).abs().max() / reference.float().abs().max())


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [rows, inputs] as floats of 8 bits, and the scale of each, float32 [rows, 1]."""
    if x.device.type != "cpu":
        from pontil.gpu_ops.triton import products

        return products.round_rows(x)
    scales = x.abs().amax(-1, keepdim=True).float().clamp(min=SMALLEST) / LARGEST_FLOAT8
    return (x / scales).to(torch.float8_e4m3fn).contiguous(), scales


class ScaledMatmul(ScaledLinear):
    """A product of rows, which are rounded to 8 bits each by a scale of its own, with floats of 8 bits that have one
    scale for each output."""

    def __init__(self, weights: ScaledWeights, dtype: torch.dtype, device: torch.device, bias: Tensor | None) -> None:
        super().__init__(weights, dtype, device, bias)
        self.numbers, self.scales = weights.numbers.t(), weights.scales.view(1, -1).contiguous()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.out_features, self.in_features

    def multiply(self, x: Tensor) -> Tensor:
        rows, scales = rounded_rows(x.flatten(0, -2))
        made: Tensor = torch._scaled_mm(
            rows, self.numbers, scale_a=scales, scale_b=self.scales, bias=self.bias, out_dtype=self.dtype
        )
        return made.view(*x.shape[:-1], self.out_features)

    def difference(self) -> float:
        """Beside Triton's result for the rounded rows: what rounding them costs is no fault."""
        x = random_rows(self.in_features, self.device)
        rows, scales = rounded_rows(x)
        return largest_difference(self.multiply(x), super().multiply((rows.float() * scales).to(self.dtype)))


class GroupedMatmul(GroupedExperts):
    """The same experts in two products of rows that stand in the order of their experts. Results of either are rounded
    to 16 bits, as those of an MLP are."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.gate_up.numbers.shape, *self.down.numbers.shape)

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        count = len(self.gate_up.numbers)
        numbers = chosen.flatten() - self.first
        # Those of experts that are elsewhere stand behind all others, and no product has them.
        numbers = torch.where((numbers >= 0) & (numbers < count), numbers, count)
        ordered, order = numbers.sort(stable=True)
        every = torch.arange(count, dtype=ordered.dtype, device=x.device)
        ends = torch.searchsorted(ordered, every, right=True).int()
        rows = x.index_select(0, order // chosen.shape[1])
        inner = self.activated(torch._grouped_mm(rows, self.gate_up.numbers.transpose(1, 2), offs=ends))
        made = torch._grouped_mm(inner, self.down.numbers.transpose(1, 2), offs=ends)
        out = torch.empty(len(order), self.down.outputs, dtype=torch.float32, device=x.device)
        return out.index_copy_(0, order, made.float()).view(*chosen.shape, self.down.outputs)

    def activated(self, gate_up: Tensor) -> Tensor:
        return silu_and_mul(gate_up) if self.clamp is None else clamped_swiglu(gate_up, *self.clamp)

    def difference(self) -> float:
        device, count = self.gate_up.numbers.device, len(self.gate_up.numbers)
        x = random_rows(self.gate_up.inputs, device)
        drawn = torch.randint(count, (len(x), 2), generator=torch.Generator().manual_seed(2))
        chosen = self.first + drawn.to(device)
        return largest_difference(self(x, chosen), super().__call__(x, chosen))


def can_scale(weights: StoredWeights, dtype: torch.dtype, bias: Tensor | None) -> bool:
    """Return whether torch multiplies such weights: floats of 8 bits with a scale for each output."""
    if not isinstance(weights, ScaledWeights) or dtype != torch.bfloat16:
        return False
    whole = all(size % FLOAT8_STEP == 0 for size in weights.shape)
    return whole and weights.scales.shape[1] == 1 and (bias is None or bias.dtype == dtype)


def can_group(weights: DeviceWeights) -> bool:
    """Return whether torch multiplies such experts: numbers of bfloat16, without biases."""
    plain = weights.kind == PLAIN and weights.numbers.dtype == torch.bfloat16 and weights.bias is None
    return plain and weights.inputs % GROUPED_STEP == 0 and weights.outputs % GROUPED_STEP == 0


class TorchProducts:
    """The products of a model that torch's kernels compute where `names` ask for them; of those that were `made` so one
    of each shape is kept, for a comparison."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = names
        self.made: dict[str, dict[tuple[int, ...], Compared]] = {name: {} for name in names}

    def linear(
        self, weights: StoredWeights, dtype: torch.dtype, device: torch.device, bias: Tensor | None
    ) -> ScaledLinear | None:
        """Return the product by torch's kernel if that is asked for and suits the weights."""
        if PRODUCTS not in self.names or not isinstance(weights, ScaledWeights) or not can_scale(weights, dtype, bias):
            return None
        made = ScaledMatmul(weights, dtype, device, bias)
        self.made[PRODUCTS][made.shape] = made
        return made

    def experts(self, usual: GroupedExperts) -> GroupedExperts:
        """Return the same experts, by torch's kernel if that is asked for and suits the weights."""
        if EXPERTS not in self.names or not (can_group(usual.gate_up) and can_group(usual.down)):
            return usual
        made = GroupedMatmul(usual.gate_up, usual.down, usual.first, usual.clamp)
        self.made[EXPERTS][made.shape] = made
        return made
