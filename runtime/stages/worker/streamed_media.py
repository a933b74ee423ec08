# SPDX-License-Identifier: Apache-2.0
"""The rows of recordings and images in a sequence's prompt, as a stage of encoders streams them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pontil.runtime.engine.sequences.prompt_keys import SaltedPrefix
from pontil.runtime.engine.sequences.streamed import MediaInputs, PositionAngles, RowInputs
from pontil.runtime.stages.graph.medium import contents_of
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer, StreamFault
from pontil.runtime.stages.worker.stage_parts import MediaBuilder


class StreamedMedia:
    """MediaInputs over a `builder`. Items are consumed as they come: what is made of them is kept, and another attempt
    begins with the first one. A worker that `receives` the prompt's keys subscribes only if it computes the prompt
    after all. With a `fault`, of another worker, no row of the prompt is ready any more: the request has to end."""

    def __init__(self, builder: MediaBuilder, open_input: Callable[[], StreamBuffer], receives: bool) -> None:
        self.builder, self.open_input = builder, open_input
        self.buffer = None if receives else open_input()
        self.fault: str | None = None

    def ready(self, start: int, stop: int) -> int:
        if start < self.builder.length:
            if self.buffer is None:
                self.buffer = self.open_input()
            self.take()
        return 0 if self.fault is not None else self.builder.ready(start, stop)

    def take(self) -> None:
        """Take the items that are here, if any were asked for: those of a prompt whose rows nobody needs too, as it was
        found in a cache, for the encoder ends only then."""
        try:
            self.take_chunks()
        except StreamFault as error:
            self.fault = str(error)

    def take_chunks(self) -> None:
        while self.fault is None and self.buffer is not None and (chunk := self.buffer.pop()) is not None:
            for item in chunk.items:
                self.builder.push(torch.from_numpy(np.array(item)))
            if chunk.final and self.builder.known < self.builder.length:
                raise StreamFault("the rows of recordings and images end before all of them are here")
            self.buffer.record(chunk)

    def rows(self, start: int, ids: Sequence[int]) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        return self.builder.rows(start, ids)

    def beside(self, inputs: RowInputs | None) -> MediaInputs:
        return self.builder.beside(inputs)


class TurnedRows:
    """MediaInputs over rows that another stage drives, some of which stand for images: each turns by the `angles` of
    its position."""

    def __init__(self, inputs: RowInputs, angles: PositionAngles) -> None:
        self.inputs, self.angles = inputs, angles

    def ready(self, start: int, stop: int) -> int:
        return self.inputs.ready(start, stop)

    def rows(self, start: int, ids: Sequence[int]) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        rows = self.inputs.rows(start, len(ids))
        return rows, self.angles(start, len(ids)), rows.new_zeros(0, *rows.shape)

    def beside(self, inputs: RowInputs | None) -> MediaInputs:
        assert inputs is not None, "all sequences of such a stage have rows"
        return TurnedRows(inputs, self.angles.plain)


def name_media(prefix: SaltedPrefix, prompt: list[int], options: Mapping[str, Any], owner: str) -> None:
    """Make the keys of a prompt of its media too. Where it is not known which they are, its `owner` alone finds it.
    Raises RequestError."""
    prefix.contents = contents_of(prompt, options)
    if prefix.contents is None:
        prefix.salt = owner
