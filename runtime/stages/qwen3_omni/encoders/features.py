# SPDX-License-Identifier: Apache-2.0
"""Features of recordings and patches of images, as the model's own processor makes them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.loaders.facts.json_fields import integer, number, read_json, section
from pontil.runtime.stages.nodes.log_mel import WINDOW, Floats, spectrogram
from pontil.runtime.stages.nodes.wav import Samples
from pontil.runtime.stages.qwen3_omni.encoders.config import VisionConfig
from pontil.runtime.stages.qwen3_omni.encoders.vision import Grid

# No image may be so many times as long as it is wide.
MOST_RATIO = 200
# Pixels of the largest image, whatever its directory says: 16,384 rows at the published sizes.
MOST_PIXELS = 1 << 24
# Pixels of the largest image before that, and samples of the longest recording, ten minutes: both are read whole.
MOST_SOURCE_PIXELS, MOST_SAMPLES = 1 << 26, 600 * 16_000


@dataclass(frozen=True, slots=True)
class ImageForm:
    """An image has so many pixels at least and at most, after it was made larger or smaller. A colour from 0 to 1
    enters as its distance from `mean`, in units of `deviation`."""

    least_pixels: int
    most_pixels: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def read_image_form(path: Path) -> ImageForm:
    """Read it from a model's preprocessor_config.json. Raises ModelError."""
    data = read_json(path / "preprocessor_config.json")
    size = section(data, "size")
    form = ImageForm(
        integer(data, "min_pixels", integer(size, "shortest_edge", 56 * 56)),
        integer(data, "max_pixels", integer(size, "longest_edge", 28 * 28 * 1280)),
        colours(data, "image_mean"),
        colours(data, "image_std"),
    )
    if not 0 < form.least_pixels <= form.most_pixels <= MOST_PIXELS or min(form.deviation) <= 0:
        raise ModelError(f"{path} has a preprocessor_config.json whose sizes no image can have: fetch the model again")
    return form


def colours(data: dict[str, Any], name: str) -> tuple[float, ...]:
    found = data.get(name, [0.5, 0.5, 0.5])
    if not isinstance(found, list) or len(found) != 3:
        raise ModelError(f"preprocessor_config.json needs three numbers as {name}: fetch the model again")
    return tuple(number({name: one}, name) for one in found)


def image_grid(height: int, width: int, config: VisionConfig, form: ImageForm) -> Grid:
    """Return the patches of an image of this size: the image keeps its shape as nearly as whole squares of patches
    allow, and costs no more than the largest one. It follows from the size alone. Raises RequestError."""
    if min(height, width) < 1 or max(height, width) > MOST_RATIO * min(height, width):
        raise RequestError(
            f"an image of {width} by {height} pixels cannot be read: the longer side may be at most {MOST_RATIO} times "
            "the shorter one",
            code="invalid_image",
        )
    if height * width > MOST_SOURCE_PIXELS:
        raise RequestError(
            f"an image of {width} by {height} pixels is too large: at most {MOST_SOURCE_PIXELS} pixels are read",
            code="invalid_image",
        )
    square = config.patch * config.merge
    lines, columns = round(height / square), round(width / square)
    if lines * columns * square**2 > form.most_pixels:
        scale = math.sqrt(height * width / form.most_pixels)
        lines, columns = (max(1, math.floor(one / scale / square)) for one in (height, width))
    elif lines * columns * square**2 < form.least_pixels:
        scale = math.sqrt(form.least_pixels / (height * width))
        lines, columns = (math.ceil(one * scale / square) for one in (height, width))
    return 1, lines * config.merge, columns * config.merge


def image_patches(pixels: NDArray[np.uint8], config: VisionConfig, form: ImageForm) -> tuple[Tensor, Grid]:
    """Return the patches of an image [height, width, 3], float32 [patches, numbers_of_patch], and their grid. Raises
    RequestError."""
    grid = image_grid(pixels.shape[0], pixels.shape[1], config, form)
    _, lines, columns = grid
    size, merge, patch = (lines * config.patch, columns * config.patch), config.merge, config.patch
    whole = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).unsqueeze(0)
    if whole.shape[2:] != size:
        whole = F.interpolate(whole, size, mode="bicubic", antialias=True)
    mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in (form.mean, form.deviation))
    image = (whole[0].float() / 255 - mean) / deviation
    squares = image.view(3, lines // merge, merge, patch, columns // merge, merge, patch).permute(1, 4, 2, 5, 0, 3, 6)
    pictures = squares.unsqueeze(5).expand(*squares.shape[:5], config.pictures, patch, patch)
    return pictures.reshape(lines * columns, -1), grid


def sound_features(samples: Samples, filters: Floats) -> Tensor:
    """Return the features of a recording of 16,000 samples a second, float32 [bands, frames]. Raises RequestError."""
    if len(samples) < WINDOW:
        raise RequestError("the recording is shorter than a fortieth of a second", code="invalid_audio")
    if len(samples) > MOST_SAMPLES:
        raise RequestError("the recording is longer than ten minutes", code="invalid_audio")
    return torch.from_numpy(spectrogram(samples, filters))
