# SPDX-License-Identifier: Apache-2.0
"""Weights that stay in memory in 8 bits or less, and become numbers of the model's type where a product needs them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.products.linear import Linear, added_halves, halves
from pontil.gpu_ops.triton.device_weights import DeviceWeights

# Outputs whose weights are taken apart at a time: few enough to stay in a cache until they are multiplied.
OUTPUTS = 256
# The values of a float of 4 bits: a sign, two bits of exponent and one of mantissa.
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
FP4_GROUP, FP4_BIAS = 32, 127


class StoredWeights(Protocol):
    """A weight [outputs, inputs]."""

    @property
    def shape(self) -> torch.Size: ...

    def rows(self, own: range) -> "StoredWeights":
        """Some outputs."""

    def part(self, outputs: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """The weights of some outputs as numbers."""

    def dense(self, dtype: torch.dtype) -> Tensor:
        """All weights as numbers."""

    def on_device(self, dtype: torch.dtype, bias: Tensor | None) -> DeviceWeights:
        """The weights as kernels for devices read them; numbers have this type."""


@dataclass(frozen=True, slots=True)
class ScaledWeights:
    """A weight is its number times the scale of its group: `numbers` float8 [outputs, inputs], `scales` float32
    [outputs, groups], each for `group` neighbouring inputs, the last one maybe for fewer."""

    numbers: Tensor
    scales: Tensor
    group: int

    @classmethod
    def of_blocks(cls, numbers: Tensor, scales: Tensor, block: tuple[int, int]) -> "ScaledWeights":
        """`scales` [blocks of outputs, blocks of inputs]: one for each block of `block` outputs and inputs."""
        by_output = scales.float().repeat_interleave(block[0], dim=0)[: len(numbers)]
        return cls(numbers, by_output.contiguous(), block[1])

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    def rows(self, own: range) -> "ScaledWeights":
        """Some outputs. The others take no memory."""
        if len(own) == len(self.numbers):
            return self
        kept = slice(own.start, own.stop)
        return ScaledWeights(self.numbers[kept].clone(), self.scales[kept].clone(), self.group)

    def columns(self, own: range) -> "ScaledWeights":
        """Some inputs, which begin and end with a group. The others take no memory."""
        groups = slice(own.start // self.group, own.stop // self.group)
        return ScaledWeights(self.numbers[:, own.start : own.stop].clone(), self.scales[:, groups].clone(), self.group)

    def part(self, outputs: slice | Tensor, dtype: torch.dtype) -> Tensor:
        inputs = self.numbers.shape[1]
        numbers = F.pad(self.numbers[outputs].float(), (0, -inputs % self.group)).unflatten(1, (-1, self.group))
        whole: Tensor = (numbers * self.scales[outputs].unsqueeze(-1)).flatten(1)
        return whole[:, :inputs].to(dtype)

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.part(slice(None), dtype)

    def on_device(self, dtype: torch.dtype, bias: Tensor | None) -> DeviceWeights:
        return DeviceWeights(self.numbers, bias, self.scales, self.group)


@dataclass(frozen=True, slots=True)
class Fp4Weights:
    """Floats of 4 bits, two in a byte, the earlier in its lower half, of which 32 neighbouring inputs share a power of
    two (MXFP4 in "OCP Microscaling Formats", Open Compute Project, 2023): `numbers` uint8 [outputs, groups, 16] and
    `scales` uint8 [outputs, groups], the exponents plus 127."""

    numbers: Tensor
    scales: Tensor

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return FP4_GROUP

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.numbers), self.numbers.shape[1] * FP4_GROUP))

    def rows(self, own: range) -> "Fp4Weights":
        """Some outputs. The others take no memory."""
        if len(own) == len(self.numbers):
            return self
        kept = slice(own.start, own.stop)
        return Fp4Weights(self.numbers[kept].clone(), self.scales[kept].clone())

    def columns(self, own: range) -> "Fp4Weights":
        """Some inputs, which begin and end with a group. The others take no memory."""
        groups = slice(own.start // FP4_GROUP, own.stop // FP4_GROUP)
        return Fp4Weights(self.numbers[:, groups].clone(), self.scales[:, groups].clone())

    def part(self, outputs: slice | Tensor, dtype: torch.dtype) -> Tensor:
        values = torch.tensor(FP4_VALUES, device=self.numbers.device)
        numbers = self.numbers[outputs].int()
        pairs = torch.stack((values[numbers & 15], values[numbers >> 4]), dim=-1).flatten(2)
        whole: Tensor = torch.ldexp(pairs, self.scales[outputs].int().unsqueeze(-1) - FP4_BIAS).flatten(1)
        return whole.to(dtype)

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.part(slice(None), dtype)

    def on_device(self, dtype: torch.dtype, bias: Tensor | None) -> DeviceWeights:
        return DeviceWeights(self.numbers.flatten(1), bias, self.scales, FP4_GROUP)


PackedWeights = ScaledWeights | Fp4Weights


@dataclass(frozen=True, slots=True)
class PlainWeights:
    """Numbers as they are, in the form of stored weights."""

    numbers: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    def rows(self, own: range) -> "PlainWeights":
        return PlainWeights(self.numbers[own.start : own.stop])

    def part(self, outputs: slice | Tensor, dtype: torch.dtype) -> Tensor:
        return self.numbers[outputs].to(dtype)

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.numbers.to(dtype)

    def on_device(self, dtype: torch.dtype, bias: Tensor | None) -> DeviceWeights:
        return DeviceWeights(self.dense(dtype), bias)


def stacked(parts: Sequence[PackedWeights]) -> PackedWeights | None:
    """One weight with the outputs of all parts, or None if they differ in kind or in their groups."""
    kinds = {part.group if isinstance(part, ScaledWeights) else None for part in parts}
    if len(kinds) != 1:
        return None
    first, scales = parts[0], torch.cat([part.scales for part in parts])
    numbers = torch.cat([part.numbers.view(torch.uint8) for part in parts]).view(first.numbers.dtype)
    return (
        ScaledWeights(numbers, scales, first.group) if isinstance(first, ScaledWeights) else Fp4Weights(numbers, scales)
    )


class ScaledLinear(Linear):
    """A product like `Linear`. On a CPU it is computed OUTPUTS outputs at a time; on a GPU a kernel takes its weights
    apart as it reads them, by tiles that suit the number of rows, or of one size if it is `deterministic`."""

    def __init__(
        self,
        weights: StoredWeights,
        dtype: torch.dtype,
        device: torch.device,
        bias: Tensor | None,
        deterministic: bool = False,
    ) -> None:
        self.weights, self.dtype, self.device, self.bias = weights, dtype, device, bias
        self.out_features, self.in_features = weights.shape
        self.deterministic, self.adapters = deterministic, None

    @property
    def on_device(self) -> DeviceWeights:
        return self.weights.on_device(self.dtype, self.bias)

    @property
    def as_numbers(self) -> DeviceWeights:
        return DeviceWeights(self.weights.dense(self.dtype), self.bias)

    def multiply(self, x: Tensor) -> Tensor:
        if self.device.type != "cpu":
            return self.by_kernel(x)
        parts = []
        for start in range(0, self.out_features, OUTPUTS):
            stop = min(start + OUTPUTS, self.out_features)
            bias = None if self.bias is None else self.bias[start:stop]
            parts.append(F.linear(x, self.weights.part(slice(start, stop), self.dtype), bias))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def twin(self, weight: Tensor) -> Linear:
        bias = None if self.bias is None else torch.zeros_like(self.bias)
        return ScaledLinear(PlainWeights(weight), self.dtype, self.device, bias, self.deterministic)


class JoinedLinear(Linear):
    """Products of the same rows on a GPU, one behind the other, whose weights cannot be one as they are stored."""

    def __init__(self, products: Sequence[Linear]) -> None:
        first = products[0]
        self.products, self.dtype, self.device = products, first.dtype, first.device
        self.out_features, self.in_features = sum(one.out_features for one in products), first.in_features
        self.bias, self.deterministic, self.adapters = None, first.deterministic, None

    def multiply(self, x: Tensor) -> Tensor:
        return torch.cat([one.multiply(x) for one in self.products], dim=-1)

    @property
    def on_device(self) -> DeviceWeights:
        return self.as_numbers

    @property
    def as_numbers(self) -> DeviceWeights:
        parts = [one.as_numbers for one in self.products]
        biases = [one.bias for one in parts if one.bias is not None]
        return DeviceWeights(torch.cat([one.numbers for one in parts]), torch.cat(biases) if biases else None)


class StoredHead(ScaledLinear):
    """`y = x W^T` for x float32 and stored weights on a GPU, float32. Where the model's type has 16 bits, weights are
    rounded to it as they are read, and a row is multiplied as the sum of two of that type (`NumbersLinear`)."""

    def __call__(self, x: Tensor) -> Tensor:
        if self.dtype == torch.float32:
            return self.by_kernel(x)
        from pontil.gpu_ops.triton import products

        rows, by_rows = halves(x, self.dtype), not self.deterministic
        return added_halves(products.product(rows, self.on_device, by_rows, torch.float32))
