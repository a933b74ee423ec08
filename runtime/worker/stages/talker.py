# SPDX-License-Identifier: Apache-2.0
"""The stage that speaks: the rows that drive it, the settings of its sampling, and the maker of its frames."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from pontil.runtime.engine.streamed import FrameMaker


class RowBuilder(Protocol):
    """Makes rows, each float32 [hidden_size], of the states of another stage's positions, float32 [2, its hidden size]:
    the embedding of a position and its hidden state."""

    @property
    def prompt_rows(self) -> int:
        """The number of rows of the prompt, which follows from the other stage's prompt alone."""

    def add_prompt(self, states: Tensor) -> None:
        """Take the states of the next positions of the other stage's prompt, [positions, 2, its hidden size]."""

    def prompt(self, first: Tensor | None) -> Tensor:
        """Return the prompt's rows, float32 [prompt_rows, hidden_size]. `first` are the states of the answer's first
        position, None for an answer that has none."""

    def step(self, frame: Sequence[int], text: Tensor | None, ended: int) -> Tensor:
        """Return the row that follows a frame. `text` are the states of the answer's next position; a step without is
        number `ended` after the last."""


class TalkerStage(Protocol):
    """The parts of a stage that speaks, besides its decoder."""

    @property
    def maker(self) -> FrameMaker: ...

    def rows(self, prompt: Sequence[int], options: Mapping[str, Any]) -> RowBuilder:
        """Begin the rows of a run with this prompt of the first stage. Raises RequestError, or MalformedFrame."""

    def sampling(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of sampling that the stage needs, as they replace those asked for."""
