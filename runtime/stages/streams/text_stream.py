# SPDX-License-Identifier: Apache-2.0
"""The text of a sequence's accepted ids as items of a stream."""

from collections.abc import Sequence

import numpy as np

from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.graph.catalog import DECODE
from pontil.runtime.stages.streams.edge_writer import EdgeWriter
from pontil.runtime.tokenizer.detokenizer import Detokenizer, StopStrings
from pontil.runtime.tokenizer.tokenizer import Tokenizer


class TextStream:
    """An Outflow. Each id is one item: the UTF-8 bytes of the text that may be shown because of it, often none. The
    text of all items is that of the answer: without stop strings, and without stop tokens. The id that is `waiting` may
    turn out to be the last, whose text ends differently; so its item follows when the next id is known."""

    def __init__(self, writer: EdgeWriter, tokenizer: Tokenizer, params: SamplingParams, ends: frozenset[int]) -> None:
        self.writer, self.params, self.ends = writer, params, ends
        self.detokenizer = Detokenizer(tokenizer, params.skip_special_tokens)
        self.stops = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None
        self.taken = 0
        self.waiting: int | None = None

    @property
    def is_full(self) -> bool:
        return self.writer.is_full

    def take(self, index: int, ids: Sequence[int], frames: Sequence[Sequence[int]] = ()) -> None:
        """Take the ids from `index` on; those that were taken before are left out."""
        for token in ids[max(0, self.taken - index) :]:
            if self.waiting is not None:
                self.write(self.shown(self.waiting))
            self.waiting = token
            self.taken += 1

    def write(self, text: str) -> None:
        self.writer.put(DECODE, np.frombuffer(text.encode(), dtype=np.uint8))

    def shown(self, token: int) -> str:
        text = (
            "" if token in self.ends and not self.params.include_stop_str_in_output else self.detokenizer.add([token])
        )
        if self.stops is None or self.taken <= self.params.min_tokens:
            return text
        return self.stops.feed(text)

    def finish(self) -> None:
        """End the stream with the text that was held back."""
        if self.waiting is not None:
            self.write(self.shown(self.waiting) + self.remaining())
            self.waiting = None
        self.writer.finish()

    def remaining(self) -> str:
        text = self.detokenizer.finish()
        return text if self.stops is None else self.stops.feed(text) + self.stops.finish()
