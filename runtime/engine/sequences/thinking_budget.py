# SPDX-License-Identifier: Apache-2.0
"""The most tokens of reasoning before an answer, as a constraint on a sequence's draws.

All of it is a function of the budget and the output, so that it is the same after a handoff, in another worker and on
replay, however the tokens came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ReasoningWatch(Protocol):
    """Reads the tokens of one answer."""

    @property
    def inside(self) -> bool:
        """Return whether the answer is within reasoning."""

    @property
    def over(self) -> bool:
        """Return whether no reasoning will follow, whatever tokens come."""

    def feed(self, token_id: int) -> None:
        """Take the next token."""


class ThinkingBudget:
    """Ends reasoning that has `most` tokens by those of `closing`, the marker with which the model itself would end it.
    The tokens of markers are not counted. Masks are `width` bytes long."""

    def __init__(
        self, most: int, closing: tuple[int, ...], width: int, make_watch: Callable[[], ReasoningWatch]
    ) -> None:
        self.most, self.closing, self.width, self.make_watch = most, closing, width, make_watch
        self.begin()

    def begin(self) -> None:
        self.watch = self.make_watch()
        self.known = self.made = self.closed = 0

    def fork(self) -> ThinkingBudget:
        """Return that of another choice, whose tokens are its own."""
        return ThinkingBudget(self.most, self.closing, self.width, self.make_watch)

    @property
    def over(self) -> bool:
        """Return whether nothing is left to be ended, as far as the output is known."""
        return self.watch.over

    def follow(self, output: list[int]) -> None:
        if len(output) < self.known:
            self.begin()
        for token in output[self.known :]:
            was_inside = self.watch.inside
            self.watch.feed(token)
            if not self.watch.inside:
                self.closed = 0
            elif was_inside and self.made < self.most:
                self.made += 1
            elif was_inside:
                self.closed += 1
        self.known = len(output)

    def room(self, output: list[int]) -> int | None:
        """Return how many tokens may follow the output before one may be forced; None for any number. A marker that has
        been spelled and ended nothing is not spelled again."""
        self.follow(output)
        return None if self.watch.over or self.closed >= len(self.closing) else self.most - self.made

    def narrowed(self, masks: list[bytes | None], output: list[int]) -> list[bytes | None]:
        """Return the masks of the token after the output and after each draft, None where all are allowed, narrowed to
        the marker's next token where that is due. It yields to a grammar that forbids it. Whether it is due behind
        drafts is not looked into: there, the mask is empty."""
        room = self.room(output)
        if room is None or room >= len(masks):
            return masks
        known = masks[:room] if room else [self.due(masks[0]) if self.watch.inside else masks[0]]
        return known + [bytes(self.width)] * (len(masks) - len(known))

    def due(self, mask: bytes | None) -> bytes | None:
        token = self.closing[self.closed]
        place, bit = token >> 3, 1 << (token & 7)
        if mask is not None and not mask[place] & bit:
            return mask
        forced = bytearray(self.width)
        forced[place] = bit
        return bytes(forced)

    def fitting(self, output: list[int], count: int) -> int:
        """Return how many of so many drafts have a mask behind them that is known."""
        room = self.room(output)
        return count if room is None else max(0, min(count, room - 1))
