# SPDX-License-Identifier: Apache-2.0
"""SNAC's decoder: frames of codes to samples, by convolutions that look as far ahead as back.

Everything is float32. The samples of some frames depend on these frames alone, and in the last bits on the number of
threads: noise, too, is drawn from a frame's own codes.
"""

import zlib
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.runtime.models.weights import Weights
from pontil.runtime.stages.orpheus.config import FRAME_CODES, FRAME_ROWS, LEVELS, SnacConfig

KERNEL, DILATIONS = 7, (1, 3, 9)
SMALLEST_DIVISOR = 1e-9


class SameConvolution:
    """A convolution that keeps the number of rows. With as many `groups` as channels each is computed by itself."""

    def __init__(
        self, weights: Weights, name: str, channels: tuple[int, int], kernel: int, groups: int = 1, dilation: int = 1
    ) -> None:
        """`channels` are those of the input and of the result."""
        self.weight = weights.take(f"{name}.weight", channels[1], channels[0] // groups, kernel)
        self.bias = weights.take(f"{name}.bias", channels[1])
        self.groups, self.dilation, self.padding = groups, dilation, (kernel - 1) * dilation // 2

    def __call__(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.weight, self.bias, 1, self.padding, self.dilation, self.groups)


class Snake1d:
    """`x + sin(a x)^2 / a` with an a for each channel (Ziyin et al., 2020)."""

    def __init__(self, weights: Weights, name: str, channels: int) -> None:
        self.alpha = weights.take(f"{name}.alpha", 1, channels, 1)

    def __call__(self, x: Tensor) -> Tensor:
        return x + torch.sin(self.alpha * x).square() / (self.alpha + SMALLEST_DIVISOR)


class SnacUnit:
    """Two convolutions, each after an activation, added to their input."""

    def __init__(self, weights: Weights, prefix: str, channels: int, dilation: int) -> None:
        both = (channels, channels)
        self.parts = (
            Snake1d(weights, f"{prefix}0", channels),
            SameConvolution(weights, f"{prefix}1", both, KERNEL, channels, dilation),
            Snake1d(weights, f"{prefix}2", channels),
            SameConvolution(weights, f"{prefix}3", both, 1),
        )

    def __call__(self, x: Tensor) -> Tensor:
        made = x
        for part in self.parts:
            made = part(made)
        return x + made


class SnacBlock:
    """`rate` times as many rows with half as many channels."""

    def __init__(self, weights: Weights, prefix: str, channels: int, rate: int, noise: bool) -> None:
        inner = channels // 2
        self.activation = Snake1d(weights, f"{prefix}0", channels)
        self.weight = weights.take(f"{prefix}1.weight", channels, inner, 2 * rate)
        self.bias = weights.take(f"{prefix}1.bias", inner)
        self.rate = rate
        self.loudness = weights.take(f"{prefix}2.linear.weight", inner, inner, 1) if noise else None
        first = 3 if noise else 2
        self.units = [
            SnacUnit(weights, f"{prefix}{first + number}.block.", inner, dilation)
            for number, dilation in enumerate(DILATIONS)
        ]

    def __call__(self, x: Tensor, noise: Tensor) -> Tensor:
        """Compute x [1, channels, rows]; `noise` [rate * rows]."""
        padding = -(-self.rate // 2)
        x = F.conv_transpose1d(self.activation(x), self.weight, self.bias, self.rate, padding, self.rate % 2)
        if self.loudness is not None:
            x = x + noise * F.conv1d(x, self.loudness)
        for unit in self.units:
            x = unit(x)
        return x


class Snac:
    """The decoder of frames. It holds no state between calls."""

    def __init__(self, config: SnacConfig, weights: Weights) -> None:
        self.config, size, channels = config, config.size, config.channels
        self.tables = [self.table(weights, f"quantizer.quantizers.{level}.") for level in range(len(LEVELS))]
        self.spread = SameConvolution(weights, "decoder.model.0", (size, size), KERNEL, size)
        self.widen = SameConvolution(weights, "decoder.model.1", (size, channels), 1)
        self.blocks = [
            SnacBlock(weights, f"decoder.model.{2 + number}.block.", channels >> number, rate, config.noise)
            for number, rate in enumerate(config.rates)
        ]
        end, last = 2 + len(config.rates), channels >> len(config.rates)
        self.activation = Snake1d(weights, f"decoder.model.{end}", last)
        self.last = SameConvolution(weights, f"decoder.model.{end + 1}", (last, 1), KERNEL)
        weights.finish()

    def table(self, weights: Weights, prefix: str) -> Tensor:
        """Return the row of numbers that each code of a level stands for, [codebook_size, size]."""
        config = self.config
        book = weights.take(f"{prefix}codebook.weight", config.codebook_size, config.codebook_dim)
        project = weights.take(f"{prefix}out_proj.weight", config.size, config.codebook_dim, 1)
        return F.linear(book, project[:, :, 0], weights.take(f"{prefix}out_proj.bias", config.size))

    @torch.inference_mode()
    def decode(self, frames: Sequence[Sequence[int]]) -> Tensor:
        """Return the samples, float32 [frames * frame_samples] in [-1, 1], of frames of seven codes each."""
        codes = torch.tensor(frames, dtype=torch.int64).view(-1, FRAME_CODES)
        rows = torch.zeros(len(codes) * FRAME_ROWS, self.config.size)
        for table, places in zip(self.tables, LEVELS, strict=True):
            level = codes[:, list(places)].flatten()
            rows = rows + table[level].repeat_interleave(FRAME_ROWS // len(places), dim=0)
        sound = self.widen(self.spread(rows.T.unsqueeze(0)))
        for block, noise in zip(self.blocks, self.noise(frames), strict=True):
            sound = block(sound, noise)
        return torch.tanh(self.last(self.activation(sound)))[0, 0]

    def noise(self, frames: Iterable[Sequence[int]]) -> list[Tensor]:
        """Return the noise behind each rate, a number for each row. That of a frame is the same wherever it stands."""
        sizes = self.config.frame_rows
        if not self.config.noise:
            return [torch.zeros(0)] * len(sizes)
        drawn = [torch.randn(sum(sizes), generator=seeded(frame)).split(sizes) for frame in frames]
        return [torch.cat(parts) for parts in zip(*drawn, strict=True)]


def seeded(frame: Sequence[int]) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr(list(frame)).encode()))
