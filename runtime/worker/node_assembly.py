# SPDX-License-Identifier: Apache-2.0
"""Construction of the node of a worker without tokens, up to a first run."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pontil.runtime.config import WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.graph.catalog import GRAPHS, GraphModel
from pontil.runtime.nodes.node import Node
from pontil.runtime.nodes.recognizer import Recognizer
from pontil.runtime.nodes.speaker import Speaker
from pontil.runtime.nodes.speech_nodes import RecognizerNode, SpeakerNode, identity_of
from pontil.runtime.reporting import Reporter


def assemble_node(config: WorkerConfig, report: Reporter) -> tuple[GraphModel, Node]:
    """Load the node that the configuration names. Raises ModelError."""
    if config.graph not in GRAPHS or config.node not in MAKERS:
        raise ModelError(f"no worker of this version computes the stage {config.node!r} of {config.graph!r}")
    report.progress(f"loading the {config.node}")
    return GRAPHS[config.graph], MAKERS[config.node](config)


def make_recognizer(config: WorkerConfig) -> Node:
    recognizer = Recognizer(config.model_path, max(1, len(config.cores)))
    return RecognizerNode(recognizer, identity_of(config.model_path))


def make_speaker(config: WorkerConfig) -> Node:
    return SpeakerNode(Speaker(config.model_path), identity_of(config.model_path))


MAKERS: Mapping[str, Callable[[WorkerConfig], Node]] = MappingProxyType(
    {"recognizer": make_recognizer, "speaker": make_speaker}
)
