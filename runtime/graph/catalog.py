# SPDX-License-Identifier: Apache-2.0
"""The models of several stages: for each its stages, and how audio goes in and comes out."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pontil.runtime.errors import GraphError

# A stage that generates tokens, with prefill and decode; or one that computes without tokens.
NodeKind = Literal["engine", "node"]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One stage. `model` is the built-in name of its own model; None: it is part of the one model directory. `splits`:
    prefill and decode of it may be on different workers (E1). A step of it makes `codes`, of which the first is the
    sampled id. As a later stage of a run it makes at most `max_tokens`, and samples by `sampling` if the client's own
    request is not greedy."""

    name: str
    kind: NodeKind
    model: str | None = None
    splits: bool = False
    codes: int = 1
    max_tokens: int = 0
    sampling: tuple[tuple[str, Any], ...] = ()

    @property
    def generates(self) -> bool:
        return self.kind == "engine"


@dataclass(frozen=True, slots=True)
class GraphModel:
    """A model of several stages.

    `first` is the stage that answers in text, to which a client's request goes. `audio` is the stage that makes PCM of
    `sample_rate`, and `recognizer` the one that makes text of a recording, where there are such. `audio_needs_states`:
    the audio is made of the first stage's states, so there is none of a text alone. `edges` are named "from/to/name".
    `voices` are those that a client may ask for, the first one by default. A directory is this model if its config.json
    names `architecture`; `names` are other names by which it is known, such as its id on a hub.
    """

    name: str
    nodes: tuple[GraphNode, ...]
    first: str
    edges: tuple[str, ...]
    audio: str | None = None
    sample_rate: int = 24000
    recognizer: str | None = None
    audio_needs_states: bool = False
    voices: tuple[str, ...] = ()
    architecture: str | None = None
    names: tuple[str, ...] = ()

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    def node(self, name: str) -> GraphNode:
        """Return a stage. An unknown name raises GraphError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise GraphError(f"{self.name} has no stage '{name}': it has {', '.join(self.node_names)}")

    def consumers(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return for each edge that leaves a stage the stage that it leads to, and what it carries."""
        parts = (edge.split("/") for edge in self.edges)
        return tuple((target, what) for source, target, what in parts if source == name)


# The values of its makers' generation settings.
TALKER_SAMPLING = (("temperature", 0.9), ("top_k", 50), ("top_p", 1.0), ("repetition_penalty", 1.05))
QWEN3_OMNI = GraphModel(
    name="qwen3-omni",
    nodes=(
        GraphNode("thinker", "engine", splits=True),
        GraphNode("talker", "engine", splits=True, codes=16, max_tokens=4096, sampling=TALKER_SAMPLING),
        GraphNode("code2wav", "node"),
    ),
    first="thinker",
    edges=("thinker/talker/states", "talker/code2wav/codes"),
    audio="code2wav",
    audio_needs_states=True,
    voices=("ethan", "chelsie", "aiden"),
    architecture="Qwen3OmniMoeForConditionalGeneration",
    names=("Qwen/Qwen3-Omni-30B-A3B-Instruct",),
)  # fmt: skip
SPEECH_DEMO = GraphModel(
    name="speech-demo",
    nodes=(
        GraphNode("recognizer", "node", model="whisper-tiny.en"),
        GraphNode("llm", "engine", model="smollm2-135m-instruct", splits=True),
        GraphNode("speaker", "node", model="hibari-heart"),
    ),
    first="llm",
    edges=("llm/speaker/ids",),
    audio="speaker",
    recognizer="recognizer",
)  # fmt: skip
GRAPHS: Mapping[str, GraphModel] = MappingProxyType({one.name: one for one in (QWEN3_OMNI, SPEECH_DEMO)})


def graph_named(name: str) -> GraphModel | None:
    """Return the model of several stages with this name, if there is one."""
    return next((one for one in GRAPHS.values() if name in (one.name, *one.names)), None)


def graph_of_architectures(architectures: object) -> GraphModel | None:
    """Return the model that a config.json's `architectures` names, if it is one of these."""
    listed = architectures if isinstance(architectures, list) else []
    return next((one for one in GRAPHS.values() if one.architecture in listed), None)
