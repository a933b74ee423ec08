# SPDX-License-Identifier: Apache-2.0
"""The rows of a sequence that another stage drives: its prompt, and one row for each of its steps."""

from collections import deque
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from pontil.runtime.graph.catalog import TALKER_LAST_PREFILL, TALKER_PREFILL
from pontil.runtime.graph.stream_buffer import Chunk, StreamBuffer, StreamPosition
from pontil.runtime.worker.stages.talker import RowBuilder

InputOpener = Callable[[Collection[str] | None], StreamBuffer]


class StreamRows:
    """A RowInputs. Items are taken from the buffer as rows are wanted, and are recorded as consumed once the step that
    uses them has run (E9). `frames` are those of the output so far. The rows from position `base` on are wanted: 0, or
    the first behind a prompt whose KV another worker computes. `known` are the rows from there on that were made.

    `open_input` subscribes to the items of some of the stage's walks, None for all, and returns their buffer.
    `make_builder` begins anew.
    """

    def __init__(
        self, make_builder: Callable[[], RowBuilder], open_input: InputOpener, frames: Sequence[Sequence[int]] = (),
        hosted: Collection[str] | None = None, receives: bool = False,
    ) -> None:  # fmt: skip
        self.make_builder, self.open_input = make_builder, open_input
        self.builder = make_builder()
        self.frames = [list(frame) for frame in frames]
        self.base = self.builder.prompt_rows if receives else 0
        self.buffer = open_input(hosted)
        self.known: list[Tensor] = []
        self.unused: deque[tuple[int, Chunk]] = deque()
        self.ended = 0

    @property
    def next_index(self) -> int:
        return self.buffer.taken.index

    def resume(self, frames: Sequence[list[int]], next_index: int) -> None:
        self.frames = self.frames or [list(frame) for frame in frames]
        self.buffer.hear(StreamPosition(next_index, TALKER_LAST_PREFILL, max(0, next_index - 1)))

    def restart(self) -> None:
        """Ask for the items of all walks from the first on."""
        self.base, self.ended = 0, 0
        self.builder = self.make_builder()
        self.buffer = self.open_input(None)
        self.known.clear()
        self.unused.clear()

    def is_ready(self, start: int, last: int) -> bool:
        if start < self.base:
            self.restart()
        while self.base + len(self.known) <= last:
            behind = self.base or self.known
            if not (self.take_step() if behind else self.take_prompt()):
                return False
        return True

    def take_prompt(self) -> bool:
        """Take a chunk of the other stage's prompt, or the first of its answer, which completes ours."""
        chunk = self.buffer.pop()
        if chunk is None:
            # An answer without states: the worker of the next walk takes the end of the stream.
            if self.buffer.leaves is not None:
                self.known = list(self.builder.prompt(None))
            return bool(self.known)
        states = states_of(chunk)
        if chunk.walk == TALKER_PREFILL:
            self.builder.add_prompt(states)
            self.buffer.record(chunk)
        else:
            self.unused.append((self.builder.prompt_rows - 1, chunk))
            self.known = list(self.builder.prompt(states[0] if len(states) else None))
        return True

    def take_step(self) -> bool:
        """Make the row of one more step. Its frame must be known, and the state of the answer's next position, or that
        there is none."""
        step = self.base + len(self.known) - self.builder.prompt_rows
        if step >= len(self.frames):
            return False
        text = None
        if not self.buffer.finished:
            chunk = self.buffer.pop()
            if chunk is None:
                return False
            self.unused.append((self.base + len(self.known), chunk))
            states = states_of(chunk)
            text = states[0] if len(states) else None
        self.known.append(self.builder.step(self.frames[step], text, self.ended))
        self.ended += text is None
        return True

    def rows(self, start: int, count: int) -> Tensor:
        return torch.stack(self.known[start - self.base : start - self.base + count])

    def take_frame(self, frame: list[int]) -> None:
        self.frames.append(frame)

    def record(self, computed: int) -> None:
        """Record the items of all rows before position `computed` as consumed."""
        while self.unused and self.unused[0][0] < computed:
            self.buffer.record(self.unused.popleft()[1])


def states_of(chunk: Chunk) -> Tensor:
    """Return the states of a chunk's positions, float32 [positions, 2, the other stage's hidden size]."""
    items = [torch.from_numpy(np.array(item)) for item in chunk.items]
    return torch.cat(items) if items else torch.empty(0)
