# SPDX-License-Identifier: Apache-2.0
"""The division of KV heads between two workers of any numbers of ranks.

A head group is a longest range of heads that lies in one share of the giving worker and in one of the taking worker. So
two workers of one rank each have a single group, and every pair of a giving and a taking rank has at most one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pontil.runtime.cache.layout import heads_of

MOST_RANKS = 1024


@dataclass(frozen=True, slots=True)
class HeadGroups:
    """The groups of `heads` KV heads between `giving` and `taking` ranks. A group's number is its place in `all`."""

    heads: int
    giving: int
    taking: int
    all: tuple[range, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "all", groups_between(self.heads, self.giving, self.taking))

    def held_by(self, rank: int) -> range:
        """The heads in a giving rank's pool."""
        return heads_of(self.heads, rank, self.giving)

    def given_by(self, rank: int) -> range:
        """The groups that a giving rank reads out. Of ranks that hold the same head only the first one does."""
        if rank and self.held_by(rank - 1) == self.held_by(rank):
            return range(0)
        return self.inside(self.held_by(rank))

    def taken_by(self, rank: int) -> range:
        """The groups that a taking rank needs."""
        return self.inside(heads_of(self.heads, rank, self.taking))

    def giver_of(self, group: int) -> int:
        """The rank that reads a group out."""
        return next(rank for rank in range(self.giving) if group in self.given_by(rank))

    def inside(self, share: range) -> range:
        numbers = [number for number, heads in enumerate(self.all) if heads.start in share]
        return range(numbers[0], numbers[-1] + 1)


def groups_between(heads: int, giving: int, taking: int) -> tuple[range, ...]:
    starts = {heads_of(heads, rank, ranks).start for ranks in (giving, taking) for rank in range(ranks)}
    bounds = [*sorted(starts), heads]
    return tuple(range(first, after) for first, after in zip(bounds, bounds[1:], strict=False))


def can_divide(heads: int, ranks: int) -> bool:
    """Return whether so many ranks can hold the heads: equal shares, or each head on equally many ranks."""
    return 0 < ranks <= MOST_RANKS and (heads % ranks == 0 or ranks % heads == 0)


def in_order(parts: Iterable[tuple[range, list[int]]], blocks: int, groups: int) -> list[int]:
    """Return the digests of so many blocks in the order (block, group), from parts: the groups of each, and their
    digests in the same order. Raises ValueError if they are not complete, or two parts differ about one group."""
    columns: dict[int, list[int]] = {}
    for numbers, digests in parts:
        if len(digests) != blocks * len(numbers):
            raise ValueError("a rank stated another number of digests than it has blocks")
        for place, group in enumerate(numbers):
            column = digests[place :: len(numbers)]
            if columns.setdefault(group, column) != column:
                raise ValueError("two ranks have other bytes of the same heads")
    if len(columns) != groups:
        raise ValueError("no rank has some of the heads")
    return [columns[group][block] for block in range(blocks) for group in range(groups)]
