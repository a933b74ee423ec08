# SPDX-License-Identifier: Apache-2.0
"""The encoder of sound: a spectrogram to rows, eight frames to each."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.runtime.models.weights import Weights
from pontil.runtime.stages.qwen3_omni.encoders.config import AudioConfig, halved
from pontil.runtime.stages.qwen3_omni.encoders.layers import SOUND, TowerLayer, TowerNorm, rows_linear

# The longest wave of the positions' sines, over 2 pi.
LONGEST_WAVE = 10000.0
CONVOLUTIONS = ("conv2d1", "conv2d2", "conv2d3")
# Chunks that go through the convolutions together: their memory is that of so many, however long a recording is.
CHUNKS_TOGETHER = 16


class AudioEncoder:
    """Convolutions over chunks of frames, then layers over as many chunks as see one another. It holds no state."""

    def __init__(self, config: AudioConfig, weights: Weights) -> None:
        self.config, hidden, channels = config, config.sizes.hidden_size, config.channels
        entering = (1, channels, channels)
        # In the order of the file.
        self.layers = [
            TowerLayer(SOUND, config.sizes, f"layers.{index}.", weights) for index in range(config.sizes.num_layers)
        ]
        self.norm = TowerNorm(weights, "ln_post", hidden, SOUND.eps)
        self.convolutions = [
            (
                weights.take(f"{name}.weight", channels, inputs, 3, 3, dtype=torch.float32),
                weights.take(f"{name}.bias", channels, dtype=torch.float32),
            )
            for name, inputs in zip(CONVOLUTIONS, entering, strict=True)
        ]
        self.spread = rows_linear(weights, channels * halved(config.bands), ("conv_out", hidden), bias=False)
        self.first = rows_linear(weights, hidden, ("proj1", hidden))
        self.second = rows_linear(weights, hidden, ("proj2", config.output_size))
        self.places = sines(config.rows_of_chunk, hidden).to(weights.device)
        weights.finish()

    @torch.inference_mode()
    def encode(self, features: Tensor) -> Tensor:
        """Return the rows, float32 [rows, output_size], of a recording's features, float32 [bands, frames]."""
        frames, chunk = features.shape[1], self.config.chunk
        # The last chunk is as long as the others, if there are any: the convolutions see silence behind it.
        missing = -frames % chunk if frames > chunk else 0
        chunks = F.pad(features, (0, missing)).split(chunk, dim=1)
        parts = [
            self.convolve(torch.stack(chunks[first : first + CHUNKS_TOGETHER]))
            for first in range(0, len(chunks), CHUNKS_TOGETHER)
        ]
        hidden = torch.cat(parts)[: self.config.rows(frames)]
        seen = self.config.rows_of_chunk * self.config.chunks_seen
        groups = [min(seen, len(hidden) - first) for first in range(0, len(hidden), seen)]
        for layer in self.layers:
            hidden = layer(hidden, groups)
        return self.second(SOUND.activation(self.first(self.norm(hidden))))

    def convolve(self, chunks: Tensor) -> Tensor:
        """Return the rows of chunks [chunks, bands, frames], with their positions."""
        made = chunks.unsqueeze(1)
        for weight, bias in self.convolutions:
            made = F.gelu(F.conv2d(made, weight, bias, stride=2, padding=1))
        rows = self.spread(made.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)).view(len(chunks), made.shape[3], -1)
        return (rows + self.places[: rows.shape[1]]).flatten(0, 1)


def sines(places: int, size: int) -> Tensor:
    """Return the positions' sines and cosines, float32 [places, size] (Vaswani et al., 2017)."""
    steps = torch.exp(-math.log(LONGEST_WAVE) / (size // 2 - 1) * torch.arange(size // 2).float())
    waves = torch.arange(places).unsqueeze(1) * steps
    return torch.cat((waves.sin(), waves.cos()), dim=1)
