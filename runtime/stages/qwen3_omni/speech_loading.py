# SPDX-License-Identifier: Apache-2.0
"""Loading of the parts of a Qwen3-Omni that make speech onto a stage's device."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.model import Model
from pontil.runtime.models.partition import Arithmetic
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.stages.qwen3_omni.code2wav import Code2Wav
from pontil.runtime.stages.qwen3_omni.config_file import read_code2wav_config, read_talker_config
from pontil.runtime.stages.qwen3_omni.directory import (
    code2wav_checkpoint,
    predictor_checkpoint,
    projections_checkpoint,
    talker_checkpoint,
)
from pontil.runtime.stages.qwen3_omni.talker import Talker, build_talker


def load_talker_decoder(
    path: Path, device: torch.device, dtype: torch.dtype, kernels: KernelLibrary | None = None
) -> Model:
    """Load the model that draws the first code of each frame. Raises ModelError."""
    config = read_talker_config(path)
    tensors = talker_checkpoint(path, config).tensors(dtype)
    block = config.decoder.weight_block
    return build_model(config.decoder, Weights(tensors, device, dtype, Packing.of(kernels), block=block))


def load_talker(path: Path, decoder: Model, deterministic: bool = False) -> Talker:
    """Load the parts beside a Talker's decoder to its device, in its type and for its kernels; with products that are
    `deterministic` as its own are. Raises ModelError."""
    config = read_talker_config(path)

    def weights(tensors: Iterable[tuple[str, Tensor]]) -> Weights:
        packing, arithmetic = Packing.of(decoder.kernels), Arithmetic(deterministic)
        return Weights(tensors, decoder.device, decoder.dtype, packing, arithmetic=arithmetic)

    predictor = weights(predictor_checkpoint(path, config).tensors())
    return build_talker(config, decoder, predictor, weights(projections_checkpoint(path, config).tensors()))


def load_code2wav(path: Path, device: torch.device) -> Code2Wav:
    """Load the model that makes sound of frames, in float32 whatever the type of its weights. Raises ModelError."""
    config = read_code2wav_config(path)
    return Code2Wav(config, Weights(code2wav_checkpoint(path, config).tensors(), device, torch.float32))
