# SPDX-License-Identifier: Apache-2.0
"""The description of a model of several stages, as far as a launch and its proxy read it. The room of stages has the
models themselves (runtime/stages/graph/catalog.py)."""

from collections.abc import Sequence
from typing import Protocol

# The built-in models by name, each with other names by which it is known, and the architectures of directories: so one
# of them is known, and not taken for another model, where the room of stages is left out.
NAMES: dict[str, tuple[str, ...]] = {
    "qwen3-omni": ("Qwen/Qwen3-Omni-30B-A3B-Instruct",),
    "orpheus": (),
    "speech-demo": (),
    "tiny-speech": (),
}
ARCHITECTURES = ("Qwen3OmniMoeForConditionalGeneration", "OrpheusSnac", "TinySpeech")


class ModelStage(Protocol):
    """One stage. `model` is the built-in name of its own model; None: it is part of the one model directory."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str | None: ...

    @property
    def generates(self) -> bool:
        """True if it makes tokens; a node makes none."""

    @property
    def splits(self) -> bool:
        """True if its prefill and its decode may be on different workers."""

    @property
    def optional(self) -> bool:
        """True if requests that do not need it are served without it."""


class StagedModel(Protocol):
    """A model of several stages. `first` is the stage that answers in text, to which a client's request goes, `audio`
    the one that makes sound and `recognizer` the one that makes text of a recording, where there are such."""

    @property
    def name(self) -> str: ...

    @property
    def nodes(self) -> Sequence[ModelStage]: ...

    @property
    def node_names(self) -> tuple[str, ...]: ...

    @property
    def first(self) -> str: ...

    @property
    def audio(self) -> str | None: ...

    @property
    def answers_in_sound(self) -> bool:
        """True if answers can be heard; a model may make sound of given texts only."""

    @property
    def voices(self) -> tuple[str, ...]: ...

    @property
    def recognizer(self) -> str | None: ...

    @property
    def encoder(self) -> str | None:
        """The stage that makes rows of the first stage's prompt, of recordings and images."""

    def node(self, name: str) -> ModelStage:
        """Return a stage. An unknown name raises GraphError."""

    def consumers(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return for each edge that leaves a stage the stage that it leads to, and what it carries."""


def group_of(graph: StagedModel | None, node: str | None) -> str | None:
    """Return the key of the workers of a stage: None for the first one, and for a model without stages."""
    return None if graph is None or node is None or node == graph.first else f"node:{node}"
