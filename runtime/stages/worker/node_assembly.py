# SPDX-License-Identifier: Apache-2.0
"""Construction of the node of a worker without tokens, up to a first run."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.reporting import Reporter
from pontil.runtime.stages.graph.catalog import GRAPHS, QWEN3_OMNI, SPEECH_DEMO, TINY_SPEECH, GraphModel
from pontil.runtime.stages.nodes.node import StageNode
from pontil.runtime.stages.nodes.recognizer import Recognizer
from pontil.runtime.stages.nodes.speaker import Speaker
from pontil.runtime.stages.nodes.speech_nodes import RecognizerNode, SpeakerNode, identity_of
from pontil.runtime.stages.nodes.tones import TONES, Tones
from pontil.runtime.stages.qwen3_omni.config_file import read_code2wav_config
from pontil.runtime.stages.qwen3_omni.directory import code2wav_checkpoint
from pontil.runtime.stages.qwen3_omni.speech_loading import load_code2wav
from pontil.runtime.stages.worker.code2wav_node import Code2WavNode


def assemble_node(config: WorkerConfig, report: Reporter) -> tuple[GraphModel, StageNode]:
    """Load the node that the configuration names. Raises ModelError."""
    graph, node = config.graph or "", config.node or ""
    if graph not in GRAPHS or (graph, node) not in MAKERS:
        raise ModelError(f"no worker of this version computes the stage {node!r} of {graph!r}")
    report.progress(f"loading the {node}")
    return GRAPHS[graph], MAKERS[graph, node](config)


def make_recognizer(config: WorkerConfig) -> StageNode:
    recognizer = Recognizer(config.model_path, max(1, len(config.cores)))
    return RecognizerNode(recognizer, identity_of(config.model_path))


def make_speaker(config: WorkerConfig) -> StageNode:
    return SpeakerNode(Speaker(config.model_path), identity_of(config.model_path))


def make_tones(config: WorkerConfig) -> StageNode:
    return SpeakerNode(Tones(), TONES)


def make_code2wav(config: WorkerConfig) -> StageNode:
    """Load Code2Wav, on one thread: sums by more would depend on their number."""
    torch.set_num_threads(1)
    path = config.model_path
    identity = code2wav_checkpoint(path, read_code2wav_config(path)).fingerprint
    return Code2WavNode(load_code2wav(path, torch.device("cpu")), identity)


MAKERS: Mapping[tuple[str, str], Callable[[WorkerConfig], StageNode]] = MappingProxyType(
    {
        (QWEN3_OMNI.name, "code2wav"): make_code2wav,
        (SPEECH_DEMO.name, "recognizer"): make_recognizer,
        (SPEECH_DEMO.name, "speaker"): make_speaker,
        (TINY_SPEECH.name, "speaker"): make_tones,
    }
)
