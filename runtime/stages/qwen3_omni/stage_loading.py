# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of a stage, and what a worker of one of Qwen3-Omni's stages loads beside it."""

from dataclasses import dataclass

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.sequences.streamed import FrameMaker
from pontil.runtime.loaders.checkpoint import Checkpoint, open_checkpoint
from pontil.runtime.models.model import Model
from pontil.runtime.stages.graph.catalog import QWEN3_OMNI
from pontil.runtime.stages.qwen3_omni.config_file import read_talker_config, speech_obstacle
from pontil.runtime.stages.qwen3_omni.directory import talker_checkpoint
from pontil.runtime.stages.qwen3_omni.speech_loading import ReadPart, load_talker
from pontil.runtime.stages.qwen3_omni.stage import OmniTalker
from pontil.runtime.stages.qwen3_omni.talking import TalkerStage

THINKER, TALKER = "thinker", "talker"


@dataclass(frozen=True, slots=True)
class StageParts:
    """The parts of a stage beside its decoder: the number of layers after which others read its states, and the
    maker of the rows of a stage that speaks."""

    state_layers: int | None = None
    talker: TalkerStage | None = None

    @property
    def maker(self) -> FrameMaker | None:
        return None if self.talker is None else self.talker.maker


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


def load_stage(config: WorkerConfig, decoder: Model, read: ReadPart) -> StageParts:
    """Load what stands beside a stage's decoder. Raises ModelError."""
    return StageParts(state_layers(config), load_omni_talker(config, decoder, read))


def load_omni_talker(config: WorkerConfig, decoder: Model, read: ReadPart) -> OmniTalker | None:
    """Load what stands beside the Talker's decoder, on its device and computed as it is; None for another stage.
    Raises ModelError."""
    if not is_stage(config, TALKER):
        return None
    return OmniTalker(load_talker(config.model_path, decoder, read))
