# SPDX-License-Identifier: Apache-2.0
"""The encoders of recordings and images: the rows of transformers, each by itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_omni import OmniPair
from torch import Tensor, nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoderConfig,
    Qwen3OmniMoeVisionEncoderConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
)

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.errors import ModelError
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.stages.qwen3_omni.directory import PartCheckpoint
from pontil.runtime.stages.qwen3_omni.encoders.audio import AudioEncoder
from pontil.runtime.stages.qwen3_omni.encoders.config import read_audio_config, read_vision_config
from pontil.runtime.stages.qwen3_omni.encoders.loading import load_audio_encoder, load_vision_encoder
from pontil.runtime.stages.qwen3_omni.encoders.vision import VisionEncoder

# Multiples of 32: the kernels can compute them. transformers counts 13 rows for a chunk of any size: only one of 100
# frames has so many.
SOUND: dict[str, Any] = {
    "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "d_model": 64, "n_window": 50,
    "n_window_infer": 200, "output_dim": 96, "downsample_hidden_size": 16, "num_mel_bins": 16,
}  # fmt: skip
IMAGES: dict[str, Any] = {
    "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "out_hidden_size": 96, "patch_size": 4,
    "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2],
}  # fmt: skip


def randomized(model: nn.Module) -> nn.Module:
    """Have every number of a model matter: norms and biases too."""
    with torch.no_grad():
        for parameter in model.parameters():
            fan = parameter[0].numel() if parameter.ndim > 1 else 25
            parameter.copy_(parameter.round() + torch.randn_like(parameter) * fan**-0.5)
    return model.float().eval()


def written(folder: Path, section: str, config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"thinker_config": {section: config.to_dict()}}))
    return folder


def weights_of(model: nn.Module, library: KernelLibrary | None = None) -> Weights:
    return Weights(model.state_dict().items(), torch.device("cpu"), torch.float32, Packing.of(library))


def sound_pair(
    folder: Path, library: KernelLibrary | None = None, **changes: Any
) -> tuple[Callable[[Tensor], Tensor], AudioEncoder]:
    torch.manual_seed(7)
    config = Qwen3OmniMoeAudioEncoderConfig(**(SOUND | changes))
    model = randomized(Qwen3OmniMoeAudioEncoder(config))

    @torch.inference_mode()
    def reference(features: Tensor) -> Tensor:
        made: Tensor = model(features, feature_lens=torch.tensor([features.shape[1]])).last_hidden_state
        return made

    return reference, AudioEncoder(
        read_audio_config(written(folder, "audio_config", config)), weights_of(model, library)
    )


Pictures = tuple[Tensor, tuple[int, int, int]]


def image_pair(
    folder: Path, library: KernelLibrary | None = None, **changes: Any
) -> tuple[Callable[[Pictures], tuple[Tensor, Tensor]], VisionEncoder]:
    torch.manual_seed(8)
    config = Qwen3OmniMoeVisionEncoderConfig(**(IMAGES | changes))
    model = randomized(Qwen3OmniMoeVisionEncoder(config))

    @torch.inference_mode()
    def reference(given: Pictures) -> tuple[Tensor, Tensor]:
        made = model(given[0], torch.tensor([given[1]]))
        deep = made.deepstack_features
        return made.pooler_output, torch.stack(deep) if deep else torch.zeros(0, *made.pooler_output.shape)

    return reference, VisionEncoder(
        read_vision_config(written(folder, "vision_config", config)), weights_of(model, library)
    )


def pictures(encoder: VisionEncoder, *grid: int) -> Pictures:
    times, lines, columns = grid
    return torch.randn(times * lines * columns, encoder.config.numbers_of_patch), (times, lines, columns)


def alike(found: Tensor, expected: Tensor) -> bool:
    """Return whether rows are those of the reference, which are not all alike."""
    assert found.shape == expected.shape and (len(found) < 2 or not torch.allclose(found[0], found[1], atol=1e-2))
    return torch.allclose(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("frames", [1, 7, 8, 9, 99, 100, 101, 108, 200, 201, 417, 1800])
def test_sound_has_the_rows_of_transformers(tmp_path: Path, library: KernelLibrary | None, frames: int) -> None:
    reference, encoder = sound_pair(tmp_path, library)
    features = torch.randn(SOUND["num_mel_bins"], frames)
    found = encoder.encode(features)
    assert len(found) == encoder.config.rows(frames) and alike(found, reference(features))


@pytest.mark.parametrize("grid", [(1, 2, 2), (1, 6, 6), (1, 8, 4), (1, 2, 14), (3, 4, 6)])
def test_images_have_the_rows_of_transformers(
    tmp_path: Path, library: KernelLibrary | None, grid: tuple[int, int, int]
) -> None:
    reference, encoder = image_pair(tmp_path, library)
    given = pictures(encoder, *grid)
    found, expected = encoder.encode(*given), reference(given)
    assert len(found[0]) == encoder.config.rows(grid) and len(found[1]) == 2
    assert alike(found[0], expected[0]) and torch.allclose(found[1], expected[1], atol=1e-4, rtol=0)


def test_other_sizes_have_the_rows_of_transformers(tmp_path: Path) -> None:
    """One row of positions, an odd number of bands, and no rows for the first layers."""
    sound, hearing = sound_pair(tmp_path, num_mel_bins=21, n_window_infer=100)
    features = torch.randn(21, 333)
    assert alike(hearing.encode(features), sound(features))
    images, seeing = image_pair(tmp_path, deepstack_visual_indexes=[], spatial_merge_size=3, temporal_patch_size=1)
    given = pictures(seeing, 2, 6, 9)
    assert alike(seeing.encode(*given)[0], images(given)[0])


def test_weights_of_16_bits_are_near(tmp_path: Path) -> None:
    reference, encoder = sound_pair(tmp_path)
    config = Qwen3OmniMoeAudioEncoderConfig(**SOUND)
    torch.manual_seed(7)
    halves = Weights(
        randomized(Qwen3OmniMoeAudioEncoder(config)).state_dict().items(), torch.device("cpu"), torch.bfloat16
    )
    features = torch.randn(SOUND["num_mel_bins"], 150)
    expected = reference(features)
    far = (AudioEncoder(encoder.config, halves).encode(features) - expected).abs().max()
    assert 1e-4 < far < 0.1 * expected.abs().max()


def test_a_directory_has_its_encoders(pair: OmniPair) -> None:
    def read(checkpoint: PartCheckpoint, part: str) -> Weights:
        return Weights(checkpoint.tensors(), torch.device("cpu"), torch.float32)

    hearing, seeing = load_audio_encoder(pair.path, read), load_vision_encoder(pair.path, read)
    features, given = torch.randn(hearing.config.bands, 5), pictures(seeing, 1, 4, 4)
    with torch.inference_mode():
        thinker = pair.hugging.thinker.model
        rows = thinker.visual(given[0], torch.tensor([given[1]]))
    assert alike(seeing.encode(*given)[0], rows.pooler_output)
    assert len(hearing.encode(features)) == hearing.config.rows(5)


@pytest.mark.parametrize(
    "section, change",
    [
        ("audio_config", {"d_model": 65}), ("audio_config", {"encoder_attention_heads": 0}),
        ("audio_config", {"num_mel_bins": 1 << 30}), ("audio_config", {"n_window": 0}),
        ("audio_config", {"max_source_positions": 3}), ("audio_config", {"n_window_infer": 1}),
        ("audio_config", {"activation_function": "relu"}), ("audio_config", None),
        ("vision_config", {"num_position_embeddings": 37}), ("vision_config", {"spatial_merge_size": 0}),
        ("vision_config", {"deepstack_visual_indexes": [2, 0]}), ("vision_config", {"in_channels": 4}),
        ("vision_config", {"deepstack_visual_indexes": [4]}), ("vision_config", {"patch_size": -1}),
        ("vision_config", {"deepstack_visual_indexes": 1}), ("vision_config", {"depth": 1 << 30}),
        ("vision_config", None),
    ],
)  # fmt: skip
def test_an_encoder_that_cannot_be_is_refused(tmp_path: Path, section: str, change: dict[str, Any] | None) -> None:
    usual = SOUND if section == "audio_config" else IMAGES
    found = {} if change is None else usual | change
    (tmp_path / "config.json").write_text(json.dumps({"thinker_config": {section: found}}))
    with pytest.raises(ModelError):
        (read_audio_config if section == "audio_config" else read_vision_config)(tmp_path)
