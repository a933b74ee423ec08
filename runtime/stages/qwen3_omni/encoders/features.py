# SPDX-License-Identifier: Apache-2.0
"""Features of recordings and patches of images, as the model's own processor makes them."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.nodes.log_mel import Floats, spectrogram
from pontil.runtime.stages.nodes.wav import Samples
from pontil.runtime.stages.nodes.windows import WINDOW
from pontil.runtime.stages.qwen3_omni.encoders.config import VisionConfig
from pontil.runtime.stages.qwen3_omni.encoders.forms import ImageForm
from pontil.runtime.stages.qwen3_omni.encoders.vision import Grid

# Samples of the longest recording, ten minutes: it is read whole.
MOST_SAMPLES = 600 * 16_000


def image_grid(height: int, width: int, config: VisionConfig, form: ImageForm) -> Grid:
    """Return the patches of an image of this size. Raises RequestError."""
    lines, columns = form.squares(config.patch * config.merge).of(height, width)
    return 1, lines * config.merge, columns * config.merge


def image_patches(pixels: NDArray[np.uint8], config: VisionConfig, form: ImageForm) -> tuple[Tensor, Grid]:
    """Return the patches of an image [height, width, 3], float32 [patches, numbers_of_patch], and their grid. Raises
    RequestError."""
    grid = image_grid(pixels.shape[0], pixels.shape[1], config, form)
    size = grid[1] * config.patch, grid[2] * config.patch
    whole = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).unsqueeze(0)
    if whole.shape[2:] != size:
        whole = F.interpolate(whole, size, mode="bicubic", antialias=True)
    return patch_rows(whole[0], config, form), grid


def patch_rows(pixels: Tensor, config: VisionConfig, form: ImageForm) -> Tensor:
    """Return the patches, float32 [patches, numbers_of_patch], of an image uint8 [3, height, width] of whole
    squares."""
    merge, patch = config.merge, config.patch
    lines, columns = (size // patch for size in pixels.shape[1:])
    mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in (form.mean, form.deviation))
    image = (pixels.float() / 255 - mean) / deviation
    squares = image.view(3, lines // merge, merge, patch, columns // merge, merge, patch).permute(1, 4, 2, 5, 0, 3, 6)
    pictures = squares.unsqueeze(5).expand(*squares.shape[:5], config.pictures, patch, patch)
    return pictures.reshape(lines * columns, -1)


def sound_features(samples: Samples, filters: Floats) -> Tensor:
    """Return the features of a recording of 16,000 samples a second, float32 [bands, frames]. Raises RequestError."""
    if len(samples) < WINDOW:
        raise RequestError("the recording is shorter than a fortieth of a second", code="invalid_audio")
    if len(samples) > MOST_SAMPLES:
        raise RequestError("the recording is longer than ten minutes", code="invalid_audio")
    return torch.from_numpy(spectrogram(samples, filters))
