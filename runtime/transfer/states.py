# SPDX-License-Identifier: Apache-2.0
"""Where a handoff stands on either side. The tables are the whole truth: any other move is a bug."""

from enum import Enum
from typing import TypeVar


class Giving(Enum):
    """The prefill side. HELD blocks wait for the decode side under a lease."""

    COMPUTING = "computing"
    HELD = "held"
    RELEASED = "released"
    EXPIRED = "expired"
    ABANDONED = "abandoned"


class Taking(Enum):
    """The decode side. DRAINING blocks are not wanted any more, but a copier may still write to them."""

    RESERVED = "reserved"
    PULLING = "pulling"
    COMPLETE = "complete"
    FAILED = "failed"
    DRAINING = "draining"
    CANCELLED = "cancelled"


GIVING_ENDS = frozenset({Giving.RELEASED, Giving.EXPIRED, Giving.ABANDONED})
GIVING_MOVES: dict[Giving, frozenset[Giving]] = {
    Giving.COMPUTING: GIVING_ENDS | {Giving.HELD},
    Giving.HELD: GIVING_ENDS,
    Giving.RELEASED: frozenset(),
    Giving.EXPIRED: frozenset(),
    Giving.ABANDONED: frozenset(),
}
TAKING_MOVES: dict[Taking, frozenset[Taking]] = {
    Taking.RESERVED: frozenset({Taking.PULLING, Taking.FAILED, Taking.DRAINING}),
    Taking.PULLING: frozenset({Taking.COMPLETE, Taking.FAILED, Taking.DRAINING}),
    Taking.COMPLETE: frozenset(),
    Taking.FAILED: frozenset(),
    Taking.DRAINING: frozenset({Taking.CANCELLED}),
    Taking.CANCELLED: frozenset(),
}

S = TypeVar("S", bound=Enum)


def move(moves: dict[S, frozenset[S]], here: S, there: S) -> S:
    """`there`, if the table allows it."""
    if there not in moves[here]:
        raise AssertionError(f"a handoff that is {here.name} cannot become {there.name}")
    return there
