# SPDX-License-Identifier: Apache-2.0
"""The angles by which a model rotates its queries and keys, with the ways to stretch them over longer texts."""

import math

import torch
from torch import Tensor

from pontil.gpu_ops.rotary import rotary_frequencies, rotary_table
from pontil.runtime.errors import ModelError
from pontil.runtime.models.config import ModelConfig, RopeScaling
from pontil.runtime.models.weights import Weights

Angles = tuple[Tensor, Tensor]


class Rotary:
    """Cosines and sines of every position a model may have."""

    def __init__(self, frequencies: Tensor, positions: int, amplitude: float, device: torch.device) -> None:
        cos, sin = rotary_table(frequencies, positions, amplitude)
        self.cos, self.sin = cos.to(device), sin.to(device)

    def __call__(self, positions: Tensor) -> Angles:
        """Cosines and sines, each float32 [rows, rotated / 2], of int64 positions [rows]."""
        return self.cos[positions], self.sin[positions]


def global_rotary(config: ModelConfig, weights: Weights) -> Rotary:
    """Angles of layers that see every position: the frequencies are scaled as the configuration says."""
    scaling = config.rope_scaling
    frequencies = rotary_frequencies(config.rotated, config.rope_theta)
    if scaling is not None:
        frequencies = scaled(frequencies, scaling, config, weights)
    return Rotary(frequencies, config.max_model_len, scaling.attention_factor if scaling else 1.0, weights.device)


def local_rotary(config: ModelConfig, theta: float, weights: Weights) -> Rotary:
    """Angles of layers with a window that have a rotary base of their own, never scaled."""
    return Rotary(rotary_frequencies(config.rotated, theta), config.max_model_len, 1.0, weights.device)


def scaled(frequencies: Tensor, scaling: RopeScaling, config: ModelConfig, weights: Weights) -> Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return stretched_by_waves(frequencies, scaling)
    if scaling.kind == "yarn":
        return stretched_by_turns(frequencies, scaling, config)
    if scaling.kind == "factors":
        return frequencies / weights.take("model.rope_factors", len(frequencies), dtype=torch.float32).cpu()
    raise ModelError(f"rotary positions scaled by {scaling.kind!r} are not supported: use another model")


def stretched_by_waves(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's scaling: frequencies with many waves in the original context stay, those with few are divided by the
    factor, others are interpolated."""
    waves = scaling.original_max_len * frequencies / (2 * math.pi)
    kept = (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return mixed(frequencies, frequencies / scaling.factor, kept)


def stretched_by_turns(frequencies: Tensor, scaling: RopeScaling, config: ModelConfig) -> Tensor:
    """YaRN's scaling: the same idea over the number of the dimension instead of the number of waves."""

    def dimension(turns: float) -> float:
        """The pair of dimensions that makes so many turns in the original context."""
        waves = scaling.original_max_len / (turns * 2 * math.pi)
        return config.rotated * math.log(waves) / (2 * math.log(config.rope_theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotated - 1)
    pairs = torch.arange(len(frequencies), dtype=torch.float32)
    kept = 1 - (pairs - low) / max(high - low, 0.001)
    return mixed(frequencies, frequencies / scaling.factor, kept)


def mixed(kept: Tensor, changed: Tensor, share: Tensor) -> Tensor:
    """Interpolate: `share` of `kept` and the rest of `changed`; shares outside [0, 1] are clamped."""
    share = share.clamp(0, 1)
    return kept * share + changed * (1 - share)
