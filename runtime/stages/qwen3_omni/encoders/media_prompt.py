# SPDX-License-Identifier: Apache-2.0
"""The rows of a Thinker's sequence whose prompt has recordings and images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.runtime.errors import RequestError
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.stages.qwen3_omni.encoders.positions import (
    AXES,
    ImagePlace,
    ThreeWayRotary,
    answer_shift,
    rotary_positions,
)


@dataclass(frozen=True, slots=True)
class EncodedMedium:
    """The `rows` of a recording or an image, float32 [rows, hidden_size], for positions with the id `mark`. Of an image
    there are the `lines` and `columns` that its rows make, and the rows `deep` for the Thinker's first layers."""

    mark: int
    rows: Tensor
    deep: Tensor | None = None
    lines: int = 0
    columns: int = 0


class MediaPrompt:
    """A prompt in which neighbouring positions with a mark stand for the rows of a medium, one each. `embed` gives the
    rows of token ids."""

    def __init__(
        self,
        prompt: Sequence[int],
        media: Sequence[EncodedMedium],
        marks: Sequence[int],
        embed: Callable[[Tensor], Tensor],
        rotary: ThreeWayRotary,
    ) -> None:
        """Raise RequestError where the positions with one of these marks are not those of the media."""
        places = places_of(prompt, media, marks)
        images = [
            ImagePlace(place, one.lines, one.columns)
            for place, one in zip(places, media, strict=True)
            if one.deep is not None
        ]
        self.length, self.embed, self.rotary = len(prompt), embed, rotary
        self.embedded = embed(torch.tensor(prompt, dtype=torch.int64))
        layers = max((len(one.deep) for one in media if one.deep is not None), default=0)
        self.deep = torch.zeros(layers, *self.embedded.shape)
        for place, one in zip(places, media, strict=True):
            self.embedded[place : place + len(one.rows)] = one.rows
            if one.deep is not None:
                self.deep[: len(one.deep), place : place + len(one.rows)] = one.deep
        self.positions = torch.from_numpy(rotary_positions(len(prompt), images))
        self.shift = answer_shift(images)

    @property
    def text(self) -> "MediaPrompt":
        """The rows of a sequence of text alone, in company of this one."""
        return MediaPrompt((), (), (), self.embed, self.rotary)

    @torch.inference_mode()
    def rows(self, start: int, ids: Sequence[int]) -> tuple[Tensor, Angles, Tensor]:
        """Return the rows of positions from `start` on, of the prompt or of the answer behind it, whose tokens are
        `ids`: MediaInputs in `runtime/engine/sequences/streamed.py`."""
        end, behind = min(start + len(ids), self.length), max(start, self.length)
        answer = torch.arange(behind, max(behind, start + len(ids))) + self.shift
        positions = torch.cat((self.positions[:, start:end], answer.expand(AXES, -1)), dim=1)
        known = max(0, end - start)
        rows = torch.cat((self.embedded[start:end], self.embed(torch.tensor(ids[known:], dtype=torch.int64))))
        deep = torch.nn.functional.pad(self.deep[:, start:end], (0, 0, 0, len(answer)))
        return rows, self.rotary(positions), deep


def places_of(prompt: Sequence[int], media: Sequence[EncodedMedium], marks: Sequence[int]) -> list[int]:
    """Return the first position of each medium's rows."""
    places, place = list[int](), 0
    for one in media:
        while place < len(prompt) and prompt[place] not in marks:
            place += 1
        end = place + len(one.rows)
        if list(prompt[place:end]) != [one.mark] * len(one.rows):
            raise RequestError("the prompt has other positions for images and recordings than it came with")
        places.append(place)
        place = end
    if any(token in marks for token in prompt[place:]):
        raise RequestError("the prompt has positions for images and recordings that it came without")
    return places
