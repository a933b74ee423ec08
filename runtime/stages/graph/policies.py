# SPDX-License-Identifier: Apache-2.0
"""Chunk policies: how many items of a stream one pass of the consumer takes, and which earlier ones it sees again."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol


class ChunkPolicy(Protocol):
    """A rule for cutting the items of one walk into chunks. Every function is pure."""

    @property
    def label(self) -> str:
        """The policy as it is written."""

    @property
    def largest(self) -> int:
        """The greatest number of items that a chunk can wait for. A producer must be allowed to be that far ahead."""

    @property
    def most_context(self) -> int:
        """The greatest number of earlier items that a chunk can show again. They are kept that long."""

    def needed(self, before: int) -> int:
        """Return the number of new items of a full chunk, if `before` items of the walk were in earlier chunks."""

    def context(self, before: int, new: int) -> int:
        """Return the number of earlier items of the walk that a chunk of `new` items shows again, if `before` items
        were in earlier chunks; there may be less."""

    def mistake(self) -> str | None:
        """Return what is wrong with the numbers of the policy, or None."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Chunks of `count` items."""

    count: int = 1

    @property
    def label(self) -> str:
        return f"Fixed({self.count})"

    @property
    def largest(self) -> int:
        return self.count

    @property
    def most_context(self) -> int:
        return 0

    def needed(self, before: int) -> int:
        return self.count

    def context(self, before: int, new: int) -> int:
        return 0

    def mistake(self) -> str | None:
        return None if self.count >= 1 else f"{self.label}: a chunk has at least one item"


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The last `window` items, once for every `stride` new ones."""

    window: int
    stride: int

    @property
    def label(self) -> str:
        return f"SlidingWindow({self.window}, {self.stride})"

    @property
    def largest(self) -> int:
        return self.window

    @property
    def most_context(self) -> int:
        return self.window

    def needed(self, before: int) -> int:
        return self.stride if before else self.window

    def context(self, before: int, new: int) -> int:
        return self.window - new

    def mistake(self) -> str | None:
        if 1 <= self.stride <= self.window:
            return None
        return f"{self.label}: the stride is from 1 to the window"


@dataclass(frozen=True, slots=True)
class LeftContext:
    """Chunks of `chunk` new items, shown after the last `left` items before them. The first ones have the sizes in
    `lead` instead, and are shown after all items before them: they come soon, and lose nothing by being small."""

    chunk: int
    left: int
    lead: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        sizes = "+".join(map(str, self.lead))
        return (
            f"LeftContext({sizes}, then {self.chunk}, {self.left})"
            if sizes
            else f"LeftContext({self.chunk}, {self.left})"
        )

    @property
    def largest(self) -> int:
        return max(self.chunk, *self.lead, 0)

    @property
    def most_context(self) -> int:
        # A chunk of the lead may be cut short, before the items of another walk.
        return max(self.left, sum(self.lead) - 1)

    def needed(self, before: int) -> int:
        ends = accumulate(self.lead)
        return next((end - before for end in ends if end > before), self.chunk)

    def context(self, before: int, new: int) -> int:
        return before if before < sum(self.lead) else self.left

    def mistake(self) -> str | None:
        if min(self.chunk, *self.lead, self.left + 1) >= 1:
            return None
        return f"{self.label}: a chunk has at least one item, the context none or more"
