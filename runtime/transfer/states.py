# SPDX-License-Identifier: Apache-2.0
"""Where a handoff stands on either side, what can happen to it there, and what is then done, in which order.

The two tables are the whole truth: giver.py and taker.py move and act only by them, and what is not in them raises.
Every state that waits has a row for a deadline that has passed: LATE on the prefill side, FAULT and STUCK on the
decode side. tests/support/handoff_model.py searches all that these tables can lead to.
"""

from enum import Enum
from typing import TypeVar


class Giving(Enum):
    """The prefill side. The blocks of COMPUTING are the engine's, those of HELD wait for the peer under a lease."""

    COMPUTING = "computing"
    HELD = "held"
    RELEASED = "released"
    EXPIRED = "expired"
    ABANDONED = "abandoned"


class GivingEvent(Enum):
    """COMPUTED: the prompt is, and is to be decoded elsewhere. FINISHED: its first tokens ended it. RENEWED, FETCHED:
    the peer says so, of this epoch; STALE: of another. LATE: the deadline passed. DROPPED: nobody wants it any more, or
    the peer cannot be reached."""

    COMPUTED = "computed"
    FINISHED = "finished"
    RENEWED = "renewed"
    FETCHED = "fetched"
    STALE = "stale"
    LATE = "late"
    DROPPED = "dropped"


class GivingAction(Enum):
    """FREE_BLOCKS gives them back to the pool, whoever has them; FREE_SLOT lets another transfer have the cell."""

    START_LEASE = "start lease"
    EXTEND_LEASE = "extend lease"
    BUMP_EPOCH = "bump epoch"
    FREE_BLOCKS = "free blocks"
    FREE_SLOT = "free slot"
    SEND_FINISHED = "send finished"
    SEND_WITHDRAWN = "send withdrawn"


class Taking(Enum):
    """The decode side. DRAINING blocks are not wanted any more, but a copier may still write to them."""

    RESERVED = "reserved"
    PULLING = "pulling"
    COMPLETE = "complete"
    FAILED = "failed"
    DRAINING = "draining"
    CANCELLED = "cancelled"


class TakingEvent(Enum):
    """ANNOUNCED: blocks can be pulled. ARRIVED: a pull ended and its blocks are good. WHOLE: all have arrived, and the
    Handoff. FAULT: something went wrong or came too late; it is noted, and SPOILED when, after that, no pull is open.
    CANCELLED: nobody wants it any more; FINISHED: the peer ended the request itself. QUIET: no pull is open any more.
    STUCK: a pull that was to end does not."""

    ANNOUNCED = "announced"
    ARRIVED = "arrived"
    WHOLE = "whole"
    FAULT = "fault"
    SPOILED = "spoiled"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    QUIET = "quiet"
    STUCK = "stuck"


class TakingAction(Enum):
    """KEEP_BLOCKS ends the sequence but not its blocks, FREE_BLOCKS gives them back to the pool. PROMOTE lets the
    engine go on with them, GO_ON_WITHOUT with nothing. STOP_WORKER ends the process: a copier that does not end makes
    its blocks unsafe for ever."""

    START_PULL = "start pull"
    ACCEPT_BLOCKS = "accept blocks"
    CANCEL_PULLS = "cancel pulls"
    KEEP_BLOCKS = "keep blocks"
    FREE_BLOCKS = "free blocks"
    PROMOTE = "promote"
    GO_ON_WITHOUT = "go on without"
    SEND_FETCHED = "send fetched"
    SEND_ABANDON = "send abandon"
    STOP_WORKER = "stop worker"


GivingTable = dict[tuple[Giving, GivingEvent], tuple[Giving, tuple[GivingAction, ...]]]
TakingTable = dict[tuple[Taking, TakingEvent], tuple[Taking, tuple[TakingAction, ...]]]

# A reader that comes after the blocks were given back must see another epoch: so this order, whatever the reason.
LET_GO = (GivingAction.BUMP_EPOCH, GivingAction.FREE_BLOCKS, GivingAction.FREE_SLOT)
WITHDRAW = (*LET_GO, GivingAction.SEND_WITHDRAWN)

GIVING: GivingTable = {
    (Giving.COMPUTING, GivingEvent.COMPUTED): (Giving.HELD, (GivingAction.START_LEASE,)),
    (Giving.COMPUTING, GivingEvent.FINISHED): (Giving.RELEASED, (*LET_GO, GivingAction.SEND_FINISHED)),
    (Giving.COMPUTING, GivingEvent.RENEWED): (Giving.COMPUTING, ()),
    (Giving.COMPUTING, GivingEvent.FETCHED): (Giving.COMPUTING, ()),
    (Giving.COMPUTING, GivingEvent.STALE): (Giving.COMPUTING, ()),
    (Giving.COMPUTING, GivingEvent.LATE): (Giving.EXPIRED, WITHDRAW),
    (Giving.COMPUTING, GivingEvent.DROPPED): (Giving.ABANDONED, WITHDRAW),
    (Giving.HELD, GivingEvent.RENEWED): (Giving.HELD, (GivingAction.EXTEND_LEASE,)),
    (Giving.HELD, GivingEvent.FETCHED): (Giving.RELEASED, LET_GO),
    (Giving.HELD, GivingEvent.STALE): (Giving.HELD, ()),
    (Giving.HELD, GivingEvent.LATE): (Giving.EXPIRED, WITHDRAW),
    (Giving.HELD, GivingEvent.DROPPED): (Giving.ABANDONED, WITHDRAW),
}

# Blocks are given back only where no pull is open: SPOILED and QUIET.
TAKING: TakingTable = {
    (Taking.RESERVED, TakingEvent.ANNOUNCED): (Taking.PULLING, (TakingAction.START_PULL,)),
    (Taking.RESERVED, TakingEvent.FAULT): (Taking.RESERVED, ()),
    (Taking.RESERVED, TakingEvent.SPOILED): (
        Taking.FAILED,
        (TakingAction.FREE_BLOCKS, TakingAction.SEND_ABANDON, TakingAction.GO_ON_WITHOUT),
    ),
    (Taking.RESERVED, TakingEvent.CANCELLED): (Taking.DRAINING, (TakingAction.KEEP_BLOCKS, TakingAction.SEND_ABANDON)),
    (Taking.RESERVED, TakingEvent.FINISHED): (Taking.DRAINING, (TakingAction.KEEP_BLOCKS,)),
    (Taking.PULLING, TakingEvent.ANNOUNCED): (Taking.PULLING, (TakingAction.START_PULL,)),
    (Taking.PULLING, TakingEvent.ARRIVED): (Taking.PULLING, (TakingAction.ACCEPT_BLOCKS,)),
    (Taking.PULLING, TakingEvent.WHOLE): (Taking.COMPLETE, (TakingAction.PROMOTE, TakingAction.SEND_FETCHED)),
    (Taking.PULLING, TakingEvent.FAULT): (Taking.PULLING, (TakingAction.CANCEL_PULLS,)),
    (Taking.PULLING, TakingEvent.STUCK): (Taking.PULLING, (TakingAction.STOP_WORKER,)),
    (Taking.PULLING, TakingEvent.SPOILED): (
        Taking.FAILED,
        (TakingAction.FREE_BLOCKS, TakingAction.SEND_ABANDON, TakingAction.GO_ON_WITHOUT),
    ),
    (Taking.PULLING, TakingEvent.CANCELLED): (
        Taking.DRAINING,
        (TakingAction.KEEP_BLOCKS, TakingAction.CANCEL_PULLS, TakingAction.SEND_ABANDON),
    ),
    (Taking.PULLING, TakingEvent.FINISHED): (Taking.DRAINING, (TakingAction.KEEP_BLOCKS, TakingAction.CANCEL_PULLS)),
    (Taking.DRAINING, TakingEvent.STUCK): (Taking.DRAINING, (TakingAction.STOP_WORKER,)),
    (Taking.DRAINING, TakingEvent.QUIET): (Taking.CANCELLED, (TakingAction.FREE_BLOCKS,)),
}

GIVING_ENDS = frozenset({Giving.RELEASED, Giving.EXPIRED, Giving.ABANDONED})
TAKING_ENDS = frozenset({Taking.COMPLETE, Taking.FAILED, Taking.CANCELLED})

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
A = TypeVar("A", bound=Enum)


def rule(table: dict[tuple[S, E], tuple[S, tuple[A, ...]]], here: S, event: E) -> tuple[S, tuple[A, ...]]:
    """Where a handoff goes from here, and what is done on the way."""
    if (here, event) not in table:
        raise AssertionError(f"to a handoff that is {here.name} cannot happen {event.name}")
    return table[here, event]
