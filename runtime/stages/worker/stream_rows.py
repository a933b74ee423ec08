# SPDX-License-Identifier: Apache-2.0
"""The rows of a sequence that another stage drives: its prompt, and one row for each of its steps."""

from collections import deque
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from pontil.runtime.stages.graph.catalog import TALKER_LAST_PREFILL, TALKER_PREFILL
from pontil.runtime.stages.graph.stream_buffer import Chunk, StreamBuffer, StreamFault, StreamPosition
from pontil.runtime.stages.worker.stage_parts import RowBuilder

InputOpener = Callable[[Collection[str] | None], StreamBuffer]


class StreamRows:
    """A RowInputs. Items are taken from the buffer as rows are wanted, and are recorded as consumed once the step that
    uses them has run (E9). `frames` are those of the output so far. The rows from position `base` on are wanted: 0, or
    the first behind a prompt whose KV another worker computes. `known` are the rows from there on that were made.

    `open_input` subscribes to the items of some of the stage's walks, None for all, and returns their buffer.
    `make_builder` begins anew. With a `fault`, of another worker, no row is ready any more: the request has to end.
    """

    def __init__(
        self,
        make_builder: Callable[[], RowBuilder],
        open_input: InputOpener,
        frames: Sequence[Sequence[int]] = (),
        hosted: Collection[str] | None = None,
        receives: bool = False,
    ) -> None:
        self.make_builder, self.open_input = make_builder, open_input
        self.builder = make_builder()
        self.frames = [list(frame) for frame in frames]
        behind = receives and not self.builder.begins_in_prompt
        self.base = self.builder.prompt_rows if behind else 0
        self.buffer = open_input(hosted if behind or not receives else None)
        self.known: list[Tensor] = []
        self.unused: deque[tuple[int, Chunk]] = deque()
        self.has_ended = False
        self.fault: str | None = None

    @property
    def next_index(self) -> int:
        return self.buffer.taken.index

    def can_resume(self, frames: Sequence[list[int]], next_index: int) -> bool:
        return len(frames) == 1 and self.builder.is_behind(frames[0], next_index)

    def resume(self, frames: Sequence[list[int]], next_index: int) -> None:
        self.frames = self.frames or [list(frame) for frame in frames]
        if self.base:
            self.builder.resume(next_index)
            try:
                # The prompt used the first item of the answer, if the answer has one.
                self.buffer.hear(StreamPosition(next_index, TALKER_LAST_PREFILL, max(0, next_index - 1)))
            except StreamFault as error:
                self.fault = str(error)

    def restart(self) -> None:
        """Ask for the items of all walks from the first on."""
        self.base = 0
        self.builder = self.make_builder()
        self.buffer = self.open_input(None)
        self.known.clear()
        self.unused.clear()

    def ready(self, start: int, stop: int) -> int:
        if start < self.base:
            self.restart()
        try:
            while self.fault is None and self.base + len(self.known) < stop:
                if not (self.make_row() or self.take_chunk()):
                    break
        except StreamFault as error:
            self.fault = str(error)
        return 0 if self.fault is not None else max(0, min(stop, self.base + len(self.known)) - start)

    def make_row(self) -> bool:
        """Make the next row, or rows of the prompt, of the states that are here."""
        step = self.base + len(self.known) - self.builder.prompt_rows
        if step < 0:
            rows = self.builder.take_prompt()
            self.known += rows
            return bool(rows)
        row = self.builder.step(step, self.frames[step]) if step < len(self.frames) else None
        if row is not None:
            self.known.append(row)
        return row is not None

    def take_chunk(self) -> bool:
        """Take the next item, if a row waits for it and it is here; or note that there is none."""
        step = self.base + len(self.known) - self.builder.prompt_rows
        if self.buffer.finished or step >= len(self.frames):
            return False
        chunk = self.buffer.pop()
        if chunk is None:
            return self.ends_elsewhere()
        for item in chunk.items:
            self.builder.push(torch.from_numpy(np.array(item)))
        if chunk.final:
            self.builder.end()
        if chunk.walk == TALKER_PREFILL:
            self.buffer.record(chunk)
        else:
            self.unused.append((self.base + len(self.known), chunk))
        return True

    def ends_elsewhere(self) -> bool:
        """Note the end of an answer without states, which only the worker of the next walk takes from the stream.
        Return whether that is news."""
        is_end = self.buffer.leaves is not None and self.buffer.ends_at == self.buffer.taken.index
        if is_end and not self.has_ended:
            self.has_ended = True
            self.builder.end()
            return True
        return False

    def rows(self, start: int, count: int) -> Tensor:
        return torch.stack(self.known[start - self.base : start - self.base + count])

    def take_frame(self, frame: list[int]) -> None:
        self.frames.append(frame)

    def record(self, computed: int) -> None:
        """Record the items of all rows before position `computed` as consumed."""
        while self.unused and self.unused[0][0] < computed:
            self.buffer.record(self.unused.popleft()[1])
