# SPDX-License-Identifier: Apache-2.0
"""The rows of a Thinker's sequence whose prompt has recordings and images."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pontil.runtime.engine.sequences.streamed import RowInputs
from pontil.runtime.errors import RequestError
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.models.model import Model
from pontil.runtime.stages.graph.medium import IMAGE, Medium, media_of
from pontil.runtime.stages.graph.stream_buffer import StreamFault
from pontil.runtime.stages.qwen3_omni.config import TalkerConfig
from pontil.runtime.stages.qwen3_omni.encoders.config import read_marks, read_sections
from pontil.runtime.stages.qwen3_omni.encoders.positions import ImagePlace, MediaAngles, ThreeWayRotary
from pontil.runtime.stages.qwen3_omni.prompt_plan import plan_prompt

# Returns the rows of token ids.
Embed = Callable[[Tensor], Tensor]


class MediaPrompt:
    """A prompt in which neighbouring positions with one of the `marks`, by kind, stand for the rows of a medium, one
    each. Its text and all angles are known from the beginning, as the media's sizes are; their rows arrive in order."""

    def __init__(
        self,
        prompt: Sequence[int],
        media: Sequence[Medium],
        marks: Mapping[str, int],
        embed: Embed,
        rotary: ThreeWayRotary,
    ) -> None:
        """Raise RequestError where the positions with one of these marks are not those of the media."""
        places = places_of(prompt, media, marks)
        named = list(zip(places, media, strict=True))
        images = [ImagePlace(place, one.lines, one.columns) for place, one in named if one.kind == IMAGE]
        self.marks, self.embed, self.rotary, self.length = marks, embed, rotary, len(prompt)
        # The positions of all media's rows, of which so many have arrived.
        self.places = [place + row for place, one in named for row in range(one.rows)]
        self.arrived = 0
        self.embedded = embed(torch.tensor(prompt, dtype=torch.int64))
        self.deep = self.embedded.new_zeros(0, *self.embedded.shape)
        self.angles = MediaAngles(rotary, len(prompt), images)

    @property
    def known(self) -> int:
        """The rows of all positions before this one are known."""
        return self.length if self.arrived == len(self.places) else self.places[self.arrived]

    def ready(self, start: int, stop: int) -> int:
        # The first row from there on that is missing: one before it may be in a cache.
        missing = max(self.arrived, bisect_left(self.places, start))
        return min(stop, self.places[missing]) - start if missing < len(self.places) else stop - start

    @torch.inference_mode()
    def push(self, rows: Tensor) -> None:
        """Take the next rows of the media, float32 [rows, 1 + layers, hidden_size]: each one as it enters, and what is
        added to it behind the first layers. Raises StreamFault for others."""
        places = self.places[self.arrived : self.arrived + len(rows)]
        fits = rows.dtype == torch.float32 and rows.ndim == 3 and rows.shape[2:] == self.embedded.shape[1:]
        if not fits or not rows.shape[1] or len(places) < len(rows) or not bool(torch.isfinite(rows).all()):
            raise StreamFault("an item has no rows of this prompt's recordings and images")
        self.embedded[places] = rows[:, 0]
        layers = rows.shape[1] - 1
        if layers > len(self.deep):
            self.deep = pad(self.deep, (0, 0, 0, 0, 0, layers - len(self.deep)))
        self.deep[:layers, places] = rows[:, 1:].transpose(0, 1)
        self.arrived += len(rows)

    def beside(self, inputs: RowInputs | None) -> "MediaPrompt":
        """Return the rows of a sequence of text alone, in company of this one."""
        return MediaPrompt((), (), self.marks, self.embed, self.rotary)

    @torch.inference_mode()
    def rows(self, start: int, ids: Sequence[int]) -> tuple[Tensor, Angles, Tensor]:
        """Return the rows of positions from `start` on, of the prompt or of the answer behind it, whose tokens are
        `ids`: MediaInputs in `runtime/engine/sequences/streamed.py`."""
        end = min(start + len(ids), self.length)
        known = max(0, end - start)
        rows = torch.cat((self.embedded[start:end], self.embed(torch.tensor(ids[known:], dtype=torch.int64))))
        deep = pad(self.deep[:, start:end], (0, 0, 0, len(ids) - known))
        return rows, self.angles(start, len(ids)), deep


def places_of(prompt: Sequence[int], media: Sequence[Medium], marks: Mapping[str, int]) -> list[int]:
    """Return the first position of each medium's rows."""
    ids, known = np.array(prompt, np.int64), list(marks.values())
    marked = np.flatnonzero(np.isin(ids, known)).tolist()
    expected = [(marks.get(one.kind), one.rows) for one in media]
    if [int(ids[place]) for place in marked] != [mark for mark, rows in expected for _ in range(rows)]:
        raise RequestError("the prompt has other positions for images and recordings than it came with")
    places, taken = list[int](), 0
    for _, rows in expected:
        places.append(marked[taken])
        taken += rows
        if marked[taken - 1] - places[-1] != rows - 1:
            raise RequestError("the prompt has text between the positions of an image or a recording")
    return places


def three_way_rotary(path: Path, config: ModelConfig, section: str) -> ThreeWayRotary:
    """Return the rotary of the decoder in this section of config.json. Raises ModelError."""
    return ThreeWayRotary(config.rotated, config.rope_theta, read_sections(path, config, section))


class TalkerTurns:
    """The angles of a Talker's rows. The first of its prompt stand for the positions that it hears, an image's among
    them; what it says comes behind the largest position of these."""

    def __init__(self, path: Path, talker: TalkerConfig) -> None:
        """Raise ModelError as OmniMedia does."""
        self.marks, self.ids = read_marks(path), talker.text
        self.rotary = three_way_rotary(path, talker.decoder, "talker_config")

    def __call__(self, prompt: Sequence[int], options: Mapping[str, Any]) -> MediaAngles | None:
        """Return the angles for this prompt of the Thinker; None without images, as they follow from places then.
        Raises RequestError where its positions are not those of the media."""
        media = media_of(options)
        if all(one.kind != IMAGE for one in media):
            return None
        plan, images = plan_prompt(prompt, self.ids), list[ImagePlace]()
        heard = sorted(plan.heard)
        for place, one in zip(places_of(prompt, media, self.marks), media, strict=True):
            start = bisect_left(heard, place)
            if one.kind == IMAGE and heard[start : start + one.rows] == list(range(place, place + one.rows)):
                images.append(ImagePlace(start, one.lines, one.columns))
        return MediaAngles(self.rotary, plan.rows, images)


class OmniMedia:
    """A MediaStage."""

    def __init__(self, path: Path, decoder: Model) -> None:
        """Raise ModelError for a configuration without such marks, or angles of another kind."""
        config = decoder.config
        self.marks, self.decoder = read_marks(path), decoder
        self.rotary = three_way_rotary(path, config, "thinker_config")

    def embed(self, ids: Tensor) -> Tensor:
        return self.decoder.embed(ids).cpu()

    def begin(self, prompt: Sequence[int], media: Sequence[Medium]) -> MediaPrompt:
        return MediaPrompt(prompt, media, self.marks, self.embed, self.rotary)
