# SPDX-License-Identifier: Apache-2.0
"""The decoder of a stage that generates, and what its worker loads beside it: a row for each stage that has anything
but a checkpoint of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.loaders.checkpoint import Checkpoint, open_checkpoint
from pontil.runtime.models.model import Model
from pontil.runtime.stages.graph.catalog import ORPHEUS, QWEN3_OMNI
from pontil.runtime.stages.orpheus.speech_ids import read_speech_ids
from pontil.runtime.stages.qwen3_omni.config_file import read_talker_config, speech_obstacle
from pontil.runtime.stages.qwen3_omni.directory import talker_checkpoint
from pontil.runtime.stages.qwen3_omni.encoders.config import media_kinds
from pontil.runtime.stages.qwen3_omni.encoders.media_prompt import OmniMedia, TalkerTurns
from pontil.runtime.stages.qwen3_omni.speech_loading import ReadPart, load_talker
from pontil.runtime.stages.qwen3_omni.stage import OmniTalker
from pontil.runtime.stages.worker.stage_parts import StageParts


def own_checkpoint(config: WorkerConfig) -> Checkpoint:
    return open_checkpoint(config.model_path)


def no_parts(config: WorkerConfig, decoder: Model, read: ReadPart) -> StageParts:
    return StageParts()


@dataclass(frozen=True, slots=True)
class StageLoader:
    """The two things that a worker loads of a stage; each raises ModelError."""

    checkpoint: Callable[[WorkerConfig], Checkpoint] = own_checkpoint
    parts: Callable[[WorkerConfig, Model, ReadPart], StageParts] = no_parts


def thinker_parts(config: WorkerConfig, decoder: Model, read: ReadPart) -> StageParts:
    """In a directory that cannot speak no stage reads the Thinker's states."""
    path = config.model_path
    media = OmniMedia(path, decoder) if media_kinds(path) else None
    layers = None if speech_obstacle(path) is not None else read_talker_config(path).accept_layer
    return StageParts(layers, media=media)


def open_talker(config: WorkerConfig) -> Checkpoint:
    return talker_checkpoint(config.model_path, read_talker_config(config.model_path))


def talker_parts(config: WorkerConfig, decoder: Model, read: ReadPart) -> StageParts:
    """Load what stands beside the Talker's decoder, on its device and computed as it is. The ids that are no codes are
    never drawn."""
    path = config.model_path
    talker = load_talker(path, decoder, read)
    angles = TalkerTurns(path, talker.config) if media_kinds(path) else no_angles
    return StageParts(talker=OmniTalker(talker, angles), sampling={"bad_token_ids": talker.config.suppressed})


def no_angles(prompt: Sequence[int], options: Mapping[str, Any]) -> None:
    """Turn no rows otherwise than their places say."""


def orpheus_parts(config: WorkerConfig, decoder: Model, read: ReadPart) -> StageParts:
    ids = read_speech_ids(config.model_path)
    return StageParts(codes=ids.codes, sampling={"stop_token_ids": [ids.end]})


LOADERS: Mapping[tuple[str | None, str | None], StageLoader] = MappingProxyType(
    {
        (QWEN3_OMNI.name, "thinker"): StageLoader(parts=thinker_parts),
        (QWEN3_OMNI.name, "talker"): StageLoader(open_talker, talker_parts),
        (ORPHEUS.name, "llm"): StageLoader(parts=orpheus_parts),
    }
)
PLAIN = StageLoader()


def stage_checkpoint(config: WorkerConfig) -> Checkpoint:
    """Open the checkpoint of the decoder that this worker computes. Raises ModelError."""
    return LOADERS.get((config.graph, config.node), PLAIN).checkpoint(config)


def load_stage(config: WorkerConfig, decoder: Model, read: ReadPart) -> StageParts:
    """Load what stands beside a stage's decoder. Raises ModelError."""
    return LOADERS.get((config.graph, config.node), PLAIN).parts(config, decoder, read)
