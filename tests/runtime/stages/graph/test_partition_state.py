# SPDX-License-Identifier: Apache-2.0
"""The table of a partition by itself, and the class that carries it out, case by case."""

from collections.abc import Callable
from itertools import product

import pytest
from partition_state import (
    FINISH,
    PARTITION,
    PARTITION_ENDS,
    PartitionAction,
    PartitionEvent,
    PartitionRun,
    PartitionState,
)


class PartitionNotes:
    """Callbacks that note what they were asked for."""

    def __init__(self) -> None:
        self.notes = list[object]()

    def ingest(self, taken: object) -> None:
        self.notes.append(("ingest", taken))

    def cancel_passes(self) -> None:
        self.notes.append("cancel")

    def send_handoff(self, parked: dict[str, list[object]]) -> None:
        self.notes.append(("handoff", parked))

    def tell_consumers(self) -> None:
        self.notes.append("tell")

    def free(self) -> None:
        self.notes.append("free")


def begun() -> tuple[PartitionRun, list[object]]:
    callbacks = PartitionNotes()
    run = PartitionRun(callbacks)
    run.begin()
    return run, callbacks.notes


def test_the_table_says_only_what_can_be_done() -> None:
    assert set(PartitionRun(PartitionNotes()).acts) == set(PartitionAction)
    for (here, event), (_, actions) in PARTITION.items():
        assert here not in PARTITION_ENDS, f"{here} is an end, and {event} goes on"
        assert len(set(actions)) == len(actions)
    assert {there for there, _ in PARTITION.values()} | {PartitionState.IDLE} == set(PartitionState)
    assert {event for _, event in PARTITION} == set(PartitionEvent)


def test_there_is_one_way_to_done() -> None:
    ways = {actions for there, actions in PARTITION.values() if there is PartitionState.DONE}
    assert ways == {FINISH}
    others = [actions for there, actions in PARTITION.values() if there is not PartitionState.DONE]
    assert not [actions for actions in others if set(actions) & set(FINISH)]


def test_every_state_can_be_ended() -> None:
    assert all((here, PartitionEvent.ENDED) in PARTITION for here in set(PartitionState) - PARTITION_ENDS)


def test_what_is_not_in_the_table_raises() -> None:
    for here, event in product(PartitionState, PartitionEvent):
        run = PartitionRun(PartitionNotes())
        run.state = here
        if (here, event) not in PARTITION:
            with pytest.raises(AssertionError, match=f"{here.name} cannot happen {event.name}"):
                run.happened(event)


def test_a_transition_waits_until_the_partition_is_clean() -> None:
    run, notes = begun()
    run.take("a", 1)
    run.take("a", 2)
    assert not run.may_enter("b") and run.may_enter("a") and run.may_enter(None)
    run.passed()
    with pytest.raises(AssertionError, match="RUNNING cannot happen ENTERED"):
        run.take("b", 3)
    run.passed()
    assert run.may_enter("b")
    run.take("b", 3)
    assert notes == [("ingest", 1), ("ingest", 2), ("ingest", 3)] and run.walk == "b"


def test_an_input_for_a_later_walk_is_parked_until_that_is_entered() -> None:  # E7
    run, _ = begun()
    run.give("b", "frame")
    run.take("a", 1)
    run.give("a", "voice")
    assert run.inputs == ["voice"]
    run.passed()
    run.take("b", 2)
    assert run.inputs == ["frame"] and not run.parked


def test_an_input_for_the_first_walk_may_come_before_the_partition_begins() -> None:  # E7
    run = PartitionRun(PartitionNotes())
    run.give("a", "voice")
    assert not run.may_enter("a")
    run.begin()
    run.take("a", 1)
    assert run.inputs == ["voice"]


def test_a_handoff_takes_the_parked_inputs_along() -> None:
    run, notes = begun()
    run.give("decode", "frame")
    run.take("prefill", 1)
    run.passed()
    run.leave()
    run.end()
    assert run.is_over and notes[-1] == ("handoff", {"decode": ["frame"]}), "the next worker tells the consumers"


def finish_quietly(run: PartitionRun) -> None:
    run.take("a", 1)
    run.passed()
    run.end()


def cancel_in_a_pass(run: PartitionRun) -> None:
    run.take("a", 1)
    run.end()
    run.end()
    assert not run.may_enter("a") and not run.is_over
    run.passed()


WAYS: dict[str, Callable[[PartitionRun], None]] = {
    "after its last pass": finish_quietly,
    "in a pass": cancel_in_a_pass,
    "before its first pass": lambda run: run.end(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_partition_is_never_done_without_telling_its_consumers(way: str) -> None:
    run, notes = begun()
    WAYS[way](run)
    run.end()
    run.give("a", "late")
    assert notes[-2:] == ["tell", "free"] and notes.count("tell") == 1 and not run.parked


def test_input_without_a_walk_is_for_the_current_one() -> None:
    """That of a consumer which the conductor moves."""
    run, _ = begun()
    run.take("ink", 1)
    run.take(None, 2)
    assert run.walk == "ink"
