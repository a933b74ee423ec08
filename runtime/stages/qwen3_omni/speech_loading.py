# SPDX-License-Identifier: Apache-2.0
"""Loading of the parts of a Qwen3-Omni that make speech onto a stage's device."""

from collections.abc import Callable
from pathlib import Path

import torch

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.model import Model
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.stages.qwen3_omni.config_file import read_talker_config
from pontil.runtime.stages.qwen3_omni.directory import (
    PartCheckpoint,
    predictor_checkpoint,
    projections_checkpoint,
    talker_checkpoint,
)
from pontil.runtime.stages.qwen3_omni.talker import Talker, build_talker

# Returns the weights of a part, of this name, as its decoder's are: of its device, its type, and for its kernels.
ReadPart = Callable[[PartCheckpoint, str], Weights]


def load_talker_decoder(
    path: Path, device: torch.device, dtype: torch.dtype, kernels: KernelLibrary | None = None
) -> Model:
    """Load the model that draws the first code of each frame. Raises ModelError."""
    config = read_talker_config(path)
    tensors = talker_checkpoint(path, config).tensors(dtype)
    block = config.decoder.weight_block
    return build_model(config.decoder, Weights(tensors, device, dtype, Packing.of(kernels), block=block))


def load_talker(path: Path, decoder: Model, read: ReadPart) -> Talker:
    """Load the parts beside a Talker's decoder. Raises ModelError."""
    config = read_talker_config(path)
    predictor = read(predictor_checkpoint(path, config), "code predictor")
    return build_talker(config, decoder, predictor, read(projections_checkpoint(path, config), "projections"))
