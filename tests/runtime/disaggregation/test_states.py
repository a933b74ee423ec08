# SPDX-License-Identifier: Apache-2.0
"""The tables of a handoff by themselves: complete, without rows out of an end, and with a deadline in every waiting
state."""

from enum import Enum
from itertools import product

import pytest
import torch
from recording_callbacks import GivingNotes, TakingNotes

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.rank_pools import RankPools
from pontil.runtime.disaggregation.receiver import KVReceiver
from pontil.runtime.disaggregation.sender import KVSender
from pontil.runtime.disaggregation.states import (
    RECEIVING,
    RECEIVING_ENDS,
    SENDING,
    SENDING_ENDS,
    ReceiveAction,
    ReceiveEvent,
    ReceiveState,
    SendAction,
    SendEvent,
    SendState,
    rule,
)
from pontil.runtime.transfer.shm.connector import ShmConnector


def test_the_tables_say_only_what_can_be_done() -> None:
    storage = KVStorage(KVLayout(16, 2, 2, 8, "bfloat16"), 3, torch.device("cpu"))
    connector = ShmConnector(storage, lambda: None)
    assert set(KVSender(RankPools(storage), "P", GivingNotes()).acts) == set(SendAction)
    assert set(KVReceiver(connector, RankPools(storage), TakingNotes()).acts) == set(ReceiveAction)
    connector.close()
    for (here, event), (_, actions) in [*SENDING.items(), *RECEIVING.items()]:
        assert here not in SENDING_ENDS | RECEIVING_ENDS, f"{here} is an end, and {event} goes on"
        assert len(set(actions)) == len(actions)
    begins = {SendState.PREPARING}
    reached = begins | {there for there, _ in SENDING.values()} | {there for there, _ in RECEIVING.values()}
    assert reached == {*SendState, *ReceiveState}


@pytest.mark.parametrize("table", [SENDING, RECEIVING], ids=["sending", "receiving"])
def test_what_is_not_in_a_table_raises(table: dict[tuple[Enum, Enum], tuple[Enum, tuple[Enum, ...]]]) -> None:
    states, events = {type(here) for here, _ in table}.pop(), {type(event) for _, event in table}.pop()
    for here, event in product(states, events):
        if (here, event) in table:
            assert rule(table, here, event) == table[here, event]
        else:
            with pytest.raises(AssertionError):
                rule(table, here, event)


def test_every_state_that_waits_has_an_end_by_deadline() -> None:  # C14
    waiting = (SendState.COMPUTING, SendState.PREPARING, SendState.KEPT, SendState.HELD)
    assert all(rule(SENDING, state, SendEvent.LATE)[0] is SendState.EXPIRED for state in waiting)
    for state in (ReceiveState.RESERVED, ReceiveState.PULLING):
        assert (state, ReceiveEvent.FAULT) in RECEIVING and rule(RECEIVING, state, ReceiveEvent.SPOILED)[
            0
        ] is ReceiveState.FAILED
    for state in (ReceiveState.PULLING, ReceiveState.DRAINING):
        assert rule(RECEIVING, state, ReceiveEvent.STUCK)[1] == (ReceiveAction.STOP_WORKER,)
