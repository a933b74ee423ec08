# SPDX-License-Identifier: Apache-2.0
"""Convolutions of Code2Wav. Sound is [1, channels, rows]; a row depends on itself and on earlier ones only."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.runtime.models.weights import Weights

DILATIONS = (1, 3, 9)
KERNEL = 7
EPSILON, SMALLEST_DIVISOR = 1e-6, 1e-9


class CausalConvolution:
    """A convolution whose last weight is for the row itself. The number of rows stays."""

    def __init__(
        self, weights: Weights, name: str, channels: tuple[int, int], kernel: int, dilation: int = 1, groups: int = 1
    ) -> None:
        """`channels` are those of the input and of the result."""
        self.weight = weights.take(f"{name}.weight", channels[1], channels[0] // groups, kernel)
        self.bias = weights.take(f"{name}.bias", channels[1])
        self.dilation, self.groups, self.before = dilation, groups, (kernel - 1) * dilation

    def __call__(self, x: Tensor) -> Tensor:
        return F.conv1d(F.pad(x, (self.before, 0)), self.weight, self.bias, dilation=self.dilation, groups=self.groups)


class UpsamplingConvolution:
    """A transposed convolution: `rate` rows for each, of which those at both ends that lack a neighbour are left out.
    With a kernel of 2 * rate, the result has `rate` rows fewer."""

    def __init__(self, weights: Weights, name: str, channels: tuple[int, int], kernel: int, rate: int) -> None:
        self.weight = weights.take(f"{name}.weight", *channels, kernel)
        self.bias = weights.take(f"{name}.bias", channels[1])
        self.rate, self.cut = rate, kernel - rate

    def __call__(self, x: Tensor) -> Tensor:
        made = F.conv_transpose1d(x, self.weight, self.bias, stride=self.rate)
        return made[..., self.cut : made.shape[-1] - self.cut].contiguous()


class Snake:
    """`x + sin(a x)^2 / b` with an a and a b for each channel, stored as logarithms (Ziyin et al., 2020)."""

    def __init__(self, weights: Weights, name: str, channels: int) -> None:
        alpha, beta = (weights.take(f"{name}.{part}", channels).exp().unsqueeze(1) for part in ("alpha", "beta"))
        self.frequency, self.share = alpha, 1.0 / (beta + SMALLEST_DIVISOR)

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.share * torch.sin(x * self.frequency).square()


class ConvNextBlock:
    """A convolution of each channel by itself, then a norm and an MLP of each row (Liu et al., 2022)."""

    def __init__(self, weights: Weights, prefix: str, channels: int) -> None:
        self.spread = CausalConvolution(weights, prefix + "dwconv.conv", (channels, channels), KERNEL, groups=channels)
        self.weight, self.bias = (weights.take(f"{prefix}norm.{part}", channels) for part in ("weight", "bias"))
        self.up = weights.linear(channels, (prefix + "pwconv1", 4 * channels), bias=True)
        self.down = weights.linear(4 * channels, (prefix + "pwconv2", channels), bias=True)
        self.scale = weights.take(prefix + "gamma", channels)

    def __call__(self, x: Tensor) -> Tensor:
        rows = self.spread(x)[0].T
        rows = F.layer_norm(rows, self.scale.shape, self.weight, self.bias, EPSILON)
        rows = self.scale * self.down(F.gelu(self.up(rows.contiguous())))
        return x + rows.T


class ResidualUnit:
    """Two convolutions, each after an activation, added to their input."""

    def __init__(self, weights: Weights, prefix: str, channels: int, dilation: int) -> None:
        both = (channels, channels)
        self.parts = (
            Snake(weights, prefix + "act1", channels),
            CausalConvolution(weights, prefix + "conv1.conv", both, KERNEL, dilation),
            Snake(weights, prefix + "act2", channels),
            CausalConvolution(weights, prefix + "conv2.conv", both, 1),
        )

    def __call__(self, x: Tensor) -> Tensor:
        made = x
        for part in self.parts:
            made = part(made)
        return made + x


class DecoderBlock:
    """`rate` times as many rows with half as many channels."""

    def __init__(self, weights: Weights, prefix: str, channels: int, rate: int) -> None:
        self.activation = Snake(weights, f"{prefix}0", channels)
        self.convolution = UpsamplingConvolution(weights, f"{prefix}1.conv", (channels, channels // 2), 2 * rate, rate)
        self.units = [
            ResidualUnit(weights, f"{prefix}{number + 2}.", channels // 2, dilation)
            for number, dilation in enumerate(DILATIONS)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        x = self.convolution(self.activation(x))
        for unit in self.units:
            x = unit(x)
        return x
