# SPDX-License-Identifier: Apache-2.0
"""The stage of a model of several stages that a worker loads: its checkpoint, and what stands beside its decoder."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.sequences.streamed import FrameMaker
from pontil.runtime.foundation.entry_points import entry_point
from pontil.runtime.loaders.checkpoint import Checkpoint, open_checkpoint
from pontil.runtime.models.model import Model
from pontil.runtime.models.weights import Weights


class PartOnDisk(Protocol):
    """The weights of a part of a model, in files."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def files(self) -> Sequence[Path]: ...

    def tensors(self) -> Iterable[tuple[str, Tensor]]: ...


class StageModel(Protocol):
    """The parts of a stage beside its decoder, which only the room of stages looks into."""

    @property
    def maker(self) -> FrameMaker | None:
        """The maker of frames, where a step makes several codes."""


def stage_checkpoint(config: WorkerConfig) -> Checkpoint:
    """Open the checkpoint of the decoder that this worker computes. Raises ModelError."""
    if config.node is None:
        return open_checkpoint(config.model_path)
    checkpoint: Checkpoint = entry_point("stage-checkpoint")(config)
    return checkpoint


def load_stage(config: WorkerConfig, decoder: Model, read: Callable[[PartOnDisk, str], Weights]) -> StageModel | None:
    """Load what stands beside a stage's decoder, where this worker computes one. `read` returns the weights of a part
    of some name, as the decoder's are. Raises ModelError."""
    if config.node is None:
        return None
    stage: StageModel = entry_point("stage-model")(config, decoder, read)
    return stage
