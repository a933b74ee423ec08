# SPDX-License-Identifier: Apache-2.0
"""The states of a sequence's positions as items of a stream.

Items of the prompt hold PROMPT_UNIT positions each, the last one the rest; each position of the answer is an item. So
an index stands for the same positions whatever the chunks in which they were computed, here or by another attempt.
"""

import torch
from torch import Tensor

from pontil.runtime.stages.graph.catalog import DECODE, PREFILL, PROMPT_UNIT
from pontil.runtime.stages.streams.edge_writer import EdgeWriter


class StateStream:
    """A StateOutputs. An item is float32 [positions, 2, hidden_size]: of each position its embedding, and its state
    after `layers` layers. The first `prompt` positions are the prompt; `position` is the first that was not taken."""

    def __init__(self, writer: EdgeWriter, prompt: int, layers: int) -> None:
        self.writer, self.prompt, self.layers = writer, prompt, layers
        self.position = 0
        self.held: list[Tensor] = []

    @property
    def units(self) -> int:
        """The number of items of the prompt."""
        return units_of(self.prompt)

    @property
    def is_full(self) -> bool:
        return self.writer.is_full

    def take(self, start: int, embedding: Tensor, hidden: Tensor) -> None:
        if self.position == 0 and start >= self.prompt:
            # The prompt was computed elsewhere, and its states come from there.
            self.writer.skip(PREFILL, self.units)
            self.position = self.prompt
        elif self.position == 0:
            self.writer.stream.begin_at(0)
        fresh = start + len(embedding) - self.position
        if fresh <= 0:
            return
        assert fresh <= len(embedding), "positions are computed in order"
        rows = torch.stack((embedding[-fresh:], hidden[-fresh:]), dim=1)
        inside = max(0, min(fresh, self.prompt - self.position))
        self.take_prompt(rows[:inside])
        for place in range(inside, fresh):
            self.writer.put(DECODE, rows[place : place + 1].numpy())
            self.position += 1

    def take_prompt(self, rows: Tensor) -> None:
        while len(rows):
            count = min(len(rows), PROMPT_UNIT - self.position % PROMPT_UNIT)
            self.held.append(rows[:count])
            rows = rows[count:]
            self.position += count
            if self.position % PROMPT_UNIT == 0 or self.position == self.prompt:
                self.writer.put(PREFILL, torch.cat(self.held).numpy())
                self.held.clear()

    def finish(self) -> None:
        self.writer.finish()


def units_of(prompt: int) -> int:
    """Return the number of items of a prompt of so many positions."""
    return -(-prompt // PROMPT_UNIT)
