# SPDX-License-Identifier: Apache-2.0
"""The target's hidden states of a sequence's newest positions, for a layer that guesses from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# The most states that are kept of a sequence: a draft model reads no more of a long text.
KEPT_STATES = 128


class TargetStates:
    """The final hidden states, float32 [hidden_size] each, of neighbouring positions from `start` to before `end`."""

    def __init__(self, start: int, rows: list[Tensor]) -> None:
        self.start, self.rows = start, rows

    @property
    def end(self) -> int:
        return self.start + len(self.rows)

    def at(self, position: int) -> Tensor:
        return self.rows[position - self.start]

    def record(self, start: int, rows: list[Tensor]) -> None:
        """Take the states of the positions from `start` on. What was known of these and of later ones is replaced; so
        are earlier ones where a gap would be left."""
        if not self.start <= start <= self.end:
            self.start, self.rows = start, []
        self.cut(start)
        self.rows += rows
        excess = max(0, len(self.rows) - KEPT_STATES)
        del self.rows[:excess]
        self.start += excess

    def cut(self, end: int) -> None:
        """Drop the states of positions from `end` on: those of rejected drafts."""
        del self.rows[max(0, end - self.start) :]

    def copy(self) -> TargetStates:
        return TargetStates(self.start, list(self.rows))
