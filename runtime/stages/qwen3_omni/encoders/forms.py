# SPDX-License-Identifier: Apache-2.0
"""The forms in which recordings and images enter the encoders, read from a directory. No torch here: the proxy reads
them too."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import integer, number, read_json, section
from pontil.runtime.stages.graph.medium import IMAGE, SOUND
from pontil.runtime.stages.nodes.squares import Squares
from pontil.runtime.stages.nodes.windows import HOP, WINDOW
from pontil.runtime.stages.qwen3_omni.encoders.config import (
    AudioConfig,
    media_kinds,
    read_audio_config,
    read_marks,
    read_vision_config,
)

# Pixels of the largest image, whatever its directory says: 16,384 rows at the published sizes.
MOST_PIXELS = 1 << 24
# The texts that the model's chat template puts in the place of a medium.
TEXTS = {SOUND: "<|audio_start|><|audio_pad|><|audio_end|>", IMAGE: "<|vision_start|><|image_pad|><|vision_end|>"}


@dataclass(frozen=True, slots=True)
class ImageForm:
    """An image has so many pixels at least and at most, after it was made larger or smaller. A colour from 0 to 1
    enters as its distance from `mean`, in units of `deviation`."""

    least_pixels: int
    most_pixels: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def squares(self, side: int) -> Squares:
        return Squares(side, self.least_pixels, self.most_pixels)


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


def read_media_forms(
    path: Path,
) -> tuple[Callable[[int], int] | None, Squares | None, dict[str, int], dict[str, str]]:
    """Return the rows of a recording of so many samples, the squares of images, the ids that stand for a row of each
    kind and the texts that stand for a medium. Raises ModelError."""
    kinds, squares = media_kinds(path), None
    if IMAGE in kinds:
        vision = read_vision_config(path)
        squares = read_image_form(path).squares(vision.patch * vision.merge)
    rows = partial(sound_rows, read_audio_config(path)) if SOUND in kinds else None
    return rows, squares, read_marks(path) if kinds else {}, TEXTS


def sound_rows(config: AudioConfig, samples: int) -> int:
    """Return the rows of a recording of so many samples; one that is shorter than a window has none."""
    return 0 if samples < WINDOW else config.rows(samples // HOP)
