# SPDX-License-Identifier: Apache-2.0
"""The view that the engine has of a stage of a model of several stages (docs/decisions/051)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class RowInputs(Protocol):
    """The rows of a sequence that are embeddings instead of token ids, in order of positions. They arrive over time.

    `frames` are those of the sequence's output, one for each id: a frame has all codes of a step, the first of which is
    the id. The ids that are known from elsewhere are there from the beginning.
    """

    @property
    def frames(self) -> list[list[int]]: ...

    @property
    def next_index(self) -> int:
        """The index of the first item of the other stage that no row has used."""

    def can_resume(self, frames: Sequence[list[int]], next_index: int) -> bool:
        """Return whether another worker can have computed the prompt with this result."""

    def resume(self, frames: Sequence[list[int]], next_index: int) -> None:
        """Go on behind a prompt that another worker computed: it made the first frames, of the items so far."""

    def ready(self, start: int, stop: int) -> int:
        """Return how many rows from `start` on are known, of those before `stop`. Rows of a prompt that another worker
        computed are asked for when they are wanted after all."""

    def rows(self, start: int, count: int) -> Tensor:
        """Return rows that are ready, float32 [count, hidden_size]."""

    def take_frame(self, frame: list[int]) -> None:
        """Append the frame that the last step made."""


class MediaInputs(Protocol):
    """The rows of a sequence whose prompt has recordings or images, which arrive over time; those of text are known
    from the beginning."""

    def ready(self, start: int, stop: int) -> int:
        """Return how many rows from `start` on are known, of those before `stop`. Those of a prompt that another worker
        computed are asked for when they are wanted after all."""

    def rows(self, start: int, ids: Sequence[int]) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """Return the rows of positions from `start` on, float32 [rows, hidden_size], the cosines and sines by which
        they turn, each float32 [rows, rotated / 2], and what is added behind the first layers, float32
        [layers, rows, hidden_size]. `ids` are the positions' tokens."""

    def beside(self, inputs: RowInputs | None) -> "MediaInputs":
        """Return the same of a sequence without media in company of this one, whose rows are these or its ids."""


class PositionAngles(Protocol):
    """The angles of a sequence's positions, where those of its prompt do not follow from their places."""

    def __call__(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of positions from `start` on, each float32 [count, rotated / 2]."""

    @property
    def plain(self) -> "PositionAngles":
        """Those of a sequence whose angles follow from its places."""


class StateOutputs(Protocol):
    """The receiver of what a sequence's positions were computed to. `layers`: hidden states are those after so many
    layers."""

    @property
    def layers(self) -> int: ...

    def take(self, start: int, embedding: Tensor, hidden: Tensor) -> None:
        """Take the states of positions from `start` on, both float32 [rows, hidden_size]. Positions may come again."""

    @property
    def is_full(self) -> bool:
        """Return whether the consumer is too far behind for more."""


class Outflow(Protocol):
    """A consumer of a sequence's accepted ids."""

    @property
    def is_full(self) -> bool:
        """Return whether the consumer is too far behind for more."""


@dataclass(frozen=True, slots=True, eq=False)
class StageStreams:
    """A sequence's streams from and to other stages: its rows may be `inputs` instead of ids, or have `media` in their
    prompt, and consumers may follow its positions' `states` or its ids (`outflow`)."""

    inputs: RowInputs | None = None
    states: StateOutputs | None = None
    outflow: Outflow | None = None
    media: MediaInputs | None = None

    def ready(self, start: int, stop: int) -> int:
        """Return how many rows from `start` on can be computed, of those before `stop`."""
        source = self.media if self.inputs is None else self.inputs
        return stop - start if source is None else source.ready(start, stop)

    def rest(self, start: int, stop: int) -> bool:
        """Return whether no row from `start` to before `stop` can be computed, or a consumer is behind."""
        if not self.ready(start, stop):
            return True
        behind = self.states is not None and self.states.is_full
        return behind or (self.outflow is not None and self.outflow.is_full)

    @property
    def exchange_rows(self) -> bool:
        """Return whether the rows are more than ids: media, or another stage's, or another stage reads their states."""
        return self.inputs is not None or self.states is not None or self.media is not None


NO_STREAMS = StageStreams()


class FrameMaker(Protocol):
    """Completes frames of several codes from the sampled ids of a step."""

    def frames(self, rows: Sequence[tuple[int, int, int, bool]], hidden: Tensor) -> list[list[int]]:
        """Return the whole frame of each row. `hidden` float32 [rows, hidden_size] are the final hidden states, as the
        model's `forward` gives them; each of `rows` is (seed, position of the frame's id, sampled id, greedy)."""
