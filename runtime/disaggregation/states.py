# SPDX-License-Identifier: Apache-2.0
"""The state machines of a handoff: states, events and the actions of each transition, in their order.

The two tables are complete: sender.py and receiver.py change state and act only by them, and an event that has no row
raises. Every waiting state has a row for a passed deadline: LATE on the prefill side, FAULT and STUCK on the decode
side. tests/support/checks/handoff_model.py explores every state that these tables can reach.
"""

from enum import Enum
from typing import TypeVar


class SendState(Enum):
    """States on the prefill side. COMPUTING: the engine owns the blocks. HELD: they wait for the peer under a lease.
    PREPARING and KEPT are the same for a prompt whose peer is not known before it claims the prompt."""

    COMPUTING = "computing"
    PREPARING = "preparing"
    KEPT = "kept"
    HELD = "held"
    RELEASED = "released"
    EXPIRED = "expired"
    ABANDONED = "abandoned"


class SendEvent(Enum):
    """Events on the prefill side. COMPUTED: the prompt is computed, and will be decoded elsewhere. FINISHED: its first
    tokens ended it. CLAIMED: a peer asked for a kept prompt. RENEWED, FETCHED: messages of the peer with the current
    epoch; STALE: with another. LATE: the deadline passed. DROPPED: the request was cancelled, or the peer cannot be
    reached."""

    COMPUTED = "computed"
    FINISHED = "finished"
    CLAIMED = "claimed"
    RENEWED = "renewed"
    FETCHED = "fetched"
    STALE = "stale"
    LATE = "late"
    DROPPED = "dropped"


class SendAction(Enum):
    """Actions on the prefill side. FREE_BLOCKS returns the blocks to the pool, whichever component owns them; FREE_SLOT
    frees the epoch cell for another transfer."""

    START_LEASE = "start lease"
    EXTEND_LEASE = "extend lease"
    BUMP_EPOCH = "bump epoch"
    FREE_BLOCKS = "free blocks"
    FREE_SLOT = "free slot"
    SEND_FINISHED = "send finished"
    SEND_WITHDRAWN = "send withdrawn"


class ReceiveState(Enum):
    """States on the decode side. DRAINING: the blocks are no longer wanted, but a copier may still write to them."""

    RESERVED = "reserved"
    PULLING = "pulling"
    COMPLETE = "complete"
    FAILED = "failed"
    DRAINING = "draining"
    CANCELLED = "cancelled"


class ReceiveEvent(Enum):
    """Events on the decode side. ANNOUNCED: blocks can be pulled. ARRIVED: a pull ended and its blocks are good. WHOLE:
    all blocks and the Handoff have arrived. FAULT: an error, or a passed deadline; it is recorded, and SPOILED follows
    once no pull is open. CANCELLED: the request was cancelled; FINISHED: the peer ended the request itself. QUIET: no
    pull is open any more. STUCK: a cancelled pull does not end."""

    ANNOUNCED = "announced"
    ARRIVED = "arrived"
    WHOLE = "whole"
    FAULT = "fault"
    SPOILED = "spoiled"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    QUIET = "quiet"
    STUCK = "stuck"


class ReceiveAction(Enum):
    """Actions on the decode side. KEEP_BLOCKS ends the sequence but keeps its blocks, FREE_BLOCKS returns them to the
    pool. PROMOTE lets the engine decode with the blocks, GO_ON_WITHOUT without any. STOP_WORKER ends the process: a
    copier that does not end makes its blocks unsafe for ever."""

    START_PULL = "start pull"
    CANCEL_PULLS = "cancel pulls"
    KEEP_BLOCKS = "keep blocks"
    FREE_BLOCKS = "free blocks"
    PROMOTE = "promote"
    GO_ON_WITHOUT = "go on without"
    SEND_FETCHED = "send fetched"
    SEND_ABANDON = "send abandon"
    STOP_WORKER = "stop worker"


SendingTable = dict[tuple[SendState, SendEvent], tuple[SendState, tuple[SendAction, ...]]]
ReceivingTable = dict[tuple[ReceiveState, ReceiveEvent], tuple[ReceiveState, tuple[ReceiveAction, ...]]]

# A reader that comes after the blocks were freed must see another epoch, so the epoch is always bumped first.
LET_GO = (SendAction.BUMP_EPOCH, SendAction.FREE_BLOCKS, SendAction.FREE_SLOT)
WITHDRAW = (*LET_GO, SendAction.SEND_WITHDRAWN)

SENDING: SendingTable = {
    (SendState.COMPUTING, SendEvent.COMPUTED): (SendState.HELD, (SendAction.START_LEASE,)),
    (SendState.COMPUTING, SendEvent.FINISHED): (SendState.RELEASED, (*LET_GO, SendAction.SEND_FINISHED)),
    (SendState.COMPUTING, SendEvent.RENEWED): (SendState.COMPUTING, ()),
    (SendState.COMPUTING, SendEvent.FETCHED): (SendState.COMPUTING, ()),
    (SendState.COMPUTING, SendEvent.STALE): (SendState.COMPUTING, ()),
    (SendState.COMPUTING, SendEvent.LATE): (SendState.EXPIRED, WITHDRAW),
    (SendState.COMPUTING, SendEvent.DROPPED): (SendState.ABANDONED, WITHDRAW),
    (SendState.PREPARING, SendEvent.COMPUTED): (SendState.KEPT, (SendAction.START_LEASE,)),
    (SendState.PREPARING, SendEvent.FINISHED): (SendState.RELEASED, LET_GO),
    (SendState.PREPARING, SendEvent.LATE): (SendState.EXPIRED, LET_GO),
    (SendState.PREPARING, SendEvent.DROPPED): (SendState.ABANDONED, LET_GO),
    # A claim leads out of KEPT, so that a prompt is claimed once.
    (SendState.KEPT, SendEvent.CLAIMED): (SendState.HELD, (SendAction.START_LEASE,)),
    (SendState.KEPT, SendEvent.LATE): (SendState.EXPIRED, LET_GO),
    (SendState.KEPT, SendEvent.DROPPED): (SendState.ABANDONED, LET_GO),
    (SendState.HELD, SendEvent.RENEWED): (SendState.HELD, (SendAction.EXTEND_LEASE,)),
    (SendState.HELD, SendEvent.FETCHED): (SendState.RELEASED, LET_GO),
    (SendState.HELD, SendEvent.STALE): (SendState.HELD, ()),
    (SendState.HELD, SendEvent.LATE): (SendState.EXPIRED, WITHDRAW),
    (SendState.HELD, SendEvent.DROPPED): (SendState.ABANDONED, WITHDRAW),
}

# Blocks are freed only where no pull is open: SPOILED and QUIET.
RECEIVING: ReceivingTable = {
    (ReceiveState.RESERVED, ReceiveEvent.ANNOUNCED): (ReceiveState.PULLING, (ReceiveAction.START_PULL,)),
    (ReceiveState.RESERVED, ReceiveEvent.FAULT): (ReceiveState.RESERVED, ()),
    (ReceiveState.RESERVED, ReceiveEvent.SPOILED): (
        ReceiveState.FAILED,
        (ReceiveAction.FREE_BLOCKS, ReceiveAction.SEND_ABANDON, ReceiveAction.GO_ON_WITHOUT),
    ),
    (ReceiveState.RESERVED, ReceiveEvent.CANCELLED): (
        ReceiveState.DRAINING,
        (ReceiveAction.KEEP_BLOCKS, ReceiveAction.SEND_ABANDON),
    ),
    (ReceiveState.RESERVED, ReceiveEvent.FINISHED): (ReceiveState.DRAINING, (ReceiveAction.KEEP_BLOCKS,)),
    (ReceiveState.PULLING, ReceiveEvent.ANNOUNCED): (ReceiveState.PULLING, (ReceiveAction.START_PULL,)),
    (ReceiveState.PULLING, ReceiveEvent.ARRIVED): (ReceiveState.PULLING, ()),
    (ReceiveState.PULLING, ReceiveEvent.WHOLE): (
        ReceiveState.COMPLETE,
        (ReceiveAction.PROMOTE, ReceiveAction.SEND_FETCHED),
    ),
    (ReceiveState.PULLING, ReceiveEvent.FAULT): (ReceiveState.PULLING, (ReceiveAction.CANCEL_PULLS,)),
    (ReceiveState.PULLING, ReceiveEvent.STUCK): (ReceiveState.PULLING, (ReceiveAction.STOP_WORKER,)),
    (ReceiveState.PULLING, ReceiveEvent.SPOILED): (
        ReceiveState.FAILED,
        (ReceiveAction.FREE_BLOCKS, ReceiveAction.SEND_ABANDON, ReceiveAction.GO_ON_WITHOUT),
    ),
    (ReceiveState.PULLING, ReceiveEvent.CANCELLED): (
        ReceiveState.DRAINING,
        (ReceiveAction.KEEP_BLOCKS, ReceiveAction.CANCEL_PULLS, ReceiveAction.SEND_ABANDON),
    ),
    (ReceiveState.PULLING, ReceiveEvent.FINISHED): (
        ReceiveState.DRAINING,
        (ReceiveAction.KEEP_BLOCKS, ReceiveAction.CANCEL_PULLS),
    ),
    (ReceiveState.DRAINING, ReceiveEvent.STUCK): (ReceiveState.DRAINING, (ReceiveAction.STOP_WORKER,)),
    (ReceiveState.DRAINING, ReceiveEvent.QUIET): (ReceiveState.CANCELLED, (ReceiveAction.FREE_BLOCKS,)),
}

SENDING_ENDS = frozenset({SendState.RELEASED, SendState.EXPIRED, SendState.ABANDONED})
RECEIVING_ENDS = frozenset({ReceiveState.COMPLETE, ReceiveState.FAILED, ReceiveState.CANCELLED})

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
A = TypeVar("A", bound=Enum)


def rule(table: dict[tuple[S, E], tuple[S, tuple[A, ...]]], here: S, event: E) -> tuple[S, tuple[A, ...]]:
    """Return the next state of a handoff and the actions of the transition. An event that has no row raises."""
    if (here, event) not in table:
        raise AssertionError(f"to a handoff that is {here.name} cannot happen {event.name}")
    return table[here, event]
