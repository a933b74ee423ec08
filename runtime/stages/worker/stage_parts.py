# SPDX-License-Identifier: Apache-2.0
"""The parts of a stage beside its decoder, and of one that another stage drives the rows and the maker of frames."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from pontil.runtime.engine.sequences.streamed import FrameMaker, MediaInputs, PositionAngles
from pontil.runtime.stages.graph.medium import Medium


class RowBuilder(Protocol):
    """Makes the rows of one run, each float32 [hidden_size], of the states of another stage's positions: the embedding
    of a position and its hidden state. They arrive in order of positions, from the first one of its prompt on."""

    @property
    def prompt_rows(self) -> int:
        """The number of rows of the prompt, which follows from the other stage's prompt alone."""

    @property
    def begins_in_prompt(self) -> bool:
        """True if the other stage's prompt has the beginning of the text, so that steps need states of it."""

    def push(self, states: Tensor) -> None:
        """Take the states of the next positions, float32 [positions, 2, the other stage's hidden size]. Raises
        StreamFault for any other item: it comes from another worker."""

    def end(self) -> None:
        """Note that no more states come. Raises StreamFault where states of the prompt are missing."""

    def is_behind(self, frame: Sequence[int], next_index: int) -> bool:
        """Return whether a prompt that is made elsewhere can have used just the items before `next_index`, and have
        ended with this frame."""

    def resume(self, next_index: int) -> None:
        """Begin behind a prompt that is made elsewhere, of the items before `next_index`."""

    def take_prompt(self) -> list[Tensor]:
        """Return the rows of the prompt that are complete and were not returned before, in order."""

    def step(self, number: int, frame: Sequence[int]) -> Tensor | None:
        """Return the row that follows frame number `number`; None while the state that it needs has not arrived."""


class TalkerStage(Protocol):
    """The parts of a stage that speaks, besides its decoder."""

    @property
    def maker(self) -> FrameMaker: ...

    def rows(self, prompt: Sequence[int], options: Mapping[str, Any]) -> RowBuilder:
        """Begin the rows of a run with this prompt of the first stage. Raises RequestError, or MalformedFrame."""

    def angles(self, prompt: Sequence[int], options: Mapping[str, Any]) -> PositionAngles | None:
        """Return the angles of these rows; None where they follow from places. Raises RequestError."""

    def is_frame(self, codes: Sequence[int]) -> bool:
        """Return whether codes that came with a message can be a frame."""


class MediaBuilder(MediaInputs, Protocol):
    """A prompt of `length` positions with recordings and images, whose rows arrive in order. Those of all positions
    before `known` are there."""

    @property
    def length(self) -> int: ...

    @property
    def known(self) -> int: ...

    def push(self, rows: Tensor) -> None:
        """Take the next rows of the media, float32 [rows, 1 + layers, hidden_size]. Raises StreamFault for others."""


class MediaStage(Protocol):
    """The part of a stage whose prompts may have recordings and images, besides its decoder."""

    def begin(self, prompt: Sequence[int], media: Sequence[Medium]) -> MediaBuilder:
        """Begin a prompt with these media. Raises RequestError where its positions are not theirs."""


@dataclass(frozen=True, slots=True)
class StageParts:
    """The parts of a stage beside its decoder: the number of layers after which others read its states; the maker of
    the rows of a stage that another one drives, or of the `media` in a prompt; of a stage whose steps make one code
    each, the ids that are `codes`. Settings of `sampling` that its runs need replace those asked for."""

    state_layers: int | None = None
    talker: TalkerStage | None = None
    media: MediaStage | None = None
    codes: range = range(0)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def takes_items(self) -> bool:
        """True if requests may have an input of another stage's items."""
        return self.talker is not None or self.media is not None

    @property
    def maker(self) -> FrameMaker | None:
        return None if self.talker is None else self.talker.maker
