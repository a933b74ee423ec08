# SPDX-License-Identifier: Apache-2.0
"""The tables of a handoff by themselves: whole, without ways out of an end, and with a deadline wherever one waits."""

from enum import Enum
from itertools import product

import pytest
import torch
from hands import GivingNotes, TakingNotes

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.transfer.giver import Giver
from pontil.runtime.transfer.over_shm import OverShm
from pontil.runtime.transfer.states import (
    GIVING,
    GIVING_ENDS,
    TAKING,
    TAKING_ENDS,
    Giving,
    GivingAction,
    GivingEvent,
    Taking,
    TakingAction,
    TakingEvent,
    rule,
)
from pontil.runtime.transfer.taker import Taker


def test_the_tables_say_only_what_can_be_done() -> None:
    storage = KVStorage(KVLayout(16, 2, 2, 8, "bfloat16"), 3, torch.device("cpu"))
    connector = OverShm(storage, lambda: None)
    assert set(Giver(storage, "P", GivingNotes()).acts) == set(GivingAction)
    assert set(Taker(connector, storage, TakingNotes()).acts) == set(TakingAction)
    connector.close()
    for (here, event), (_, actions) in [*GIVING.items(), *TAKING.items()]:
        assert here not in GIVING_ENDS | TAKING_ENDS, f"{here} is an end, and {event} goes on"
        assert len(set(actions)) == len(actions)
    reached = {there for there, _ in GIVING.values()} | {there for there, _ in TAKING.values()}
    assert reached == {*Giving, *Taking}


@pytest.mark.parametrize("table", [GIVING, TAKING], ids=["giving", "taking"])
def test_what_is_not_in_a_table_raises(table: dict[tuple[Enum, Enum], tuple[Enum, tuple[Enum, ...]]]) -> None:
    states, events = {type(here) for here, _ in table}.pop(), {type(event) for _, event in table}.pop()
    for here, event in product(states, events):
        if (here, event) in table:
            assert rule(table, here, event) == table[here, event]
        else:
            with pytest.raises(AssertionError):
                rule(table, here, event)


def test_every_state_that_waits_has_an_end_by_deadline() -> None:  # C14
    waiting = (Giving.COMPUTING, Giving.HELD)
    assert all(rule(GIVING, state, GivingEvent.LATE)[0] is Giving.EXPIRED for state in waiting)
    for state in (Taking.RESERVED, Taking.PULLING):
        assert (state, TakingEvent.FAULT) in TAKING and rule(TAKING, state, TakingEvent.SPOILED)[0] is Taking.FAILED
    for state in (Taking.PULLING, Taking.DRAINING):
        assert rule(TAKING, state, TakingEvent.STUCK)[1] == (TakingAction.STOP_WORKER,)
