# SPDX-License-Identifier: Apache-2.0
"""The parts of Qwen3-Omni that a worker of one of its stages loads."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.config import WorkerConfig
from pontil.runtime.graph.catalog import QWEN3_OMNI
from pontil.runtime.loaders.checkpoint import Checkpoint, open_checkpoint
from pontil.runtime.loaders.omni_config import read_talker_config, speech_obstacle
from pontil.runtime.loaders.omni_directory import predictor_checkpoint, projections_checkpoint, talker_checkpoint
from pontil.runtime.models.model import Model
from pontil.runtime.models.qwen3_omni.talker import build_talker
from pontil.runtime.models.weights import Weights
from pontil.runtime.worker.stages.omni_talker import OmniTalker

THINKER, TALKER = "thinker", "talker"


class HasTensors(Protocol):
    def tensors(self) -> Iterator[tuple[str, Tensor]]: ...


def is_stage(config: WorkerConfig, node: str) -> bool:
    return config.graph == QWEN3_OMNI.name and config.node == node


def stage_checkpoint(config: WorkerConfig) -> Checkpoint:
    """Open the checkpoint of the decoder that this worker computes. Raises ModelError."""
    if is_stage(config, TALKER):
        return talker_checkpoint(config.model_path, read_talker_config(config.model_path))
    return open_checkpoint(config.model_path)


def state_layers(config: WorkerConfig) -> int | None:
    """Return the number of layers after which the Talker reads the Thinker's states; None where nobody does."""
    if not is_stage(config, THINKER) or speech_obstacle(config.model_path) is not None:
        return None
    return read_talker_config(config.model_path).accept_layer


def load_talker(config: WorkerConfig, decoder: Model) -> OmniTalker | None:
    """Load what stands beside the Talker's decoder, on its device and computed as it is; None for another stage.
    Raises ModelError."""
    if not is_stage(config, TALKER):
        return None
    path, kernels, dtype = config.model_path, decoder.kernels, decoder.dtype
    talker = read_talker_config(path)
    predictor, projections = predictor_checkpoint(path, talker), projections_checkpoint(path, talker)
    read = [weights_of(part, decoder.device, dtype, kernels) for part in (predictor, projections)]
    return OmniTalker(build_talker(talker, decoder, *read))


def weights_of(part: HasTensors, device: torch.device, dtype: torch.dtype, kernels: KernelLibrary | None) -> Weights:
    return Weights(part.tensors(), device, dtype, kernels)
