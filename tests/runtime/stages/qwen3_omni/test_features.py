# SPDX-License-Identifier: Apache-2.0
"""Features of recordings and patches of images: those that transformers' processors make."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import WhisperFeatureExtractor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.stages.nodes.log_mel import mel_filters
from pontil.runtime.stages.nodes.squares import MOST_SOURCE_PIXELS
from pontil.runtime.stages.qwen3_omni.encoders.config import TowerSizes, VisionConfig
from pontil.runtime.stages.qwen3_omni.encoders.features import (
    image_grid,
    image_patches,
    sound_features,
)
from pontil.runtime.stages.qwen3_omni.encoders.forms import MOST_PIXELS, ImageForm, read_image_form

EYES = VisionConfig(TowerSizes(32, 32, 1, 1), 16, 2, 2, 8, 1e4, (), 32)
FORM = ImageForm(56 * 56, 28 * 28 * 130, (0.5, 0.4, 0.3), (0.5, 0.3, 0.2))


@pytest.mark.parametrize("count", [400, 401, 480, 16000, 40123])
@pytest.mark.parametrize("bands", [80, 128])
def test_sound_has_the_features_of_transformers(count: int, bands: int) -> None:
    samples = np.random.default_rng(count).standard_normal(count).astype(np.float32) * np.float32(0.1)
    made = WhisperFeatureExtractor(feature_size=bands)(
        samples, sampling_rate=16000, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt"
    )
    found = sound_features(samples, mel_filters(bands))
    assert found.dtype == torch.float32 and found.shape[1] == int(made["attention_mask"].sum())
    torch.testing.assert_close(found, made["input_features"][0], atol=1e-4, rtol=0)


def test_a_recording_of_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="shorter"):
        sound_features(np.zeros(399, np.float32), mel_filters(16))


@pytest.mark.parametrize("height, width", [(96, 64), (95, 130), (400, 500), (20, 30), (1, 90)])
def test_images_have_the_patches_of_transformers(height: int, width: int) -> None:
    """They may differ by two of 255 levels where the image is made larger or smaller: Pillow rounds in between."""
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
    # Neighbours that are alike, as in a picture.
    pixels = np.repeat(np.repeat(pixels[::8, ::8], 8, 0), 8, 1)[:height, :width]
    processor = Qwen2VLImageProcessorPil(
        min_pixels=FORM.least_pixels, max_pixels=FORM.most_pixels, patch_size=16, image_mean=list(FORM.mean),
        image_std=list(FORM.deviation),
    )  # fmt: skip
    made = processor(images=[pixels], return_tensors="pt", input_data_format="channels_last")
    patches, grid = image_patches(pixels, EYES, FORM)
    assert grid == tuple(made["image_grid_thw"][0].tolist())
    near = 1e-5 if (height, width) == (96, 64) else 2 / 255 / min(FORM.deviation) + 1e-5
    torch.testing.assert_close(patches, made["pixel_values"], atol=near, rtol=0)


SIDE = st.integers(1, 100_000)


@given(SIDE, SIDE)
def test_an_image_has_the_size_that_transformers_gives_it_or_is_refused(height: int, width: int) -> None:
    if height * width > MOST_SOURCE_PIXELS:
        with pytest.raises(RequestError):
            image_grid(height, width, EYES, FORM)
        return
    try:
        right = smart_resize(height, width, 32, FORM.least_pixels, FORM.most_pixels)
    except ValueError:
        with pytest.raises(RequestError, match="200 times"):
            image_grid(height, width, EYES, FORM)
        return
    times, lines, columns = image_grid(height, width, EYES, FORM)
    assert (times, lines * 16, columns * 16) == (1, *right)


def test_no_image_is_an_empty_one() -> None:
    for size in ((0, 0), (0, 5), (5, 0)):
        with pytest.raises(RequestError):
            image_grid(*size, EYES, FORM)


@pytest.mark.parametrize(
    "data",
    [
        {"min_pixels": 0}, {"min_pixels": 100, "max_pixels": 99}, {"image_std": [1, 0, 1]}, {"image_mean": [1, 2]},
        {"max_pixels": MOST_PIXELS + 1}, {"size": 3}, {"image_mean": ["a", 0, 0]},
    ],
)  # fmt: skip
def test_a_form_that_no_image_can_have_is_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(data))
    with pytest.raises(ModelError):
        read_image_form(tmp_path)


def test_a_form_is_read_in_the_older_and_the_newer_way(tmp_path: Path) -> None:
    path = tmp_path / "preprocessor_config.json"
    half = (0.5, 0.5, 0.5)
    path.write_text(json.dumps({"min_pixels": 3136, "max_pixels": 12845056, "image_mean": [0.5] * 3}))
    assert read_image_form(tmp_path) == ImageForm(3136, 12845056, half, half)
    path.write_text(json.dumps({"size": {"shortest_edge": 7, "longest_edge": 9000}, "image_std": [0.2, 0.3, 1]}))
    assert read_image_form(tmp_path) == ImageForm(7, 9000, half, (0.2, 0.3, 1.0))
