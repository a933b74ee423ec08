# SPDX-License-Identifier: Apache-2.0
"""Model checking of a partition's table with two partitions, and proof that the search would find an error in it.

Checked in every reachable state: each item runs once and in order, under its own walk, with the inputs that were parked
for that; nothing is freed while a pass runs; there is one final chunk. Checked for all runs: each fair one ends, with
all consumers told, everything freed, and everything delivered unless the client left.
"""

from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet
from effort import by_default
from partition_model import TwoPartitions
from partition_state import (
    ENTER,
    FINISH,
    PARTITION,
    PartitionEvent,
    PartitionRun,
    PartitionState,
    PartitionTable,
)
from partition_world import SPLIT, TOGETHER
from search import Found, Violation, search

from pontil.runtime.stages.graph.stream_buffer import Chunk, StreamBuffer, StreamPosition

ANSWERS: dict[str, tuple[str, ...]] = {
    "no item at all": (),
    "no state of the answer": ("prefill",),
    "one state": ("prefill", "last"),
    "two states": ("prefill", "last", "decode"),
}
HOSTS = {"split": SPLIT, "together": TOGETHER}
TROUBLES = ("crashes", "losses", "repeats", "leaves")
Hosts = tuple[frozenset[str], ...]


def check(
    tags: tuple[str, ...],
    hosts: Hosts,
    troubles: tuple[str, ...],
    table: PartitionTable = PARTITION,
    kind: type[StreamBuffer] = StreamBuffer,
) -> Found:
    system = TwoPartitions(tags, hosts, table, kind)
    return search(system.start(**{name: int(name in troubles) for name in TROUBLES}), system.steps, system.at_rest)


def cases() -> Iterator[ParameterSet]:
    """Yield answers, placements and troubles; those of most worlds are for the long run, and so is
    each trouble in its other placement."""
    for answer, tags in ANSWERS.items():
        for placed, hosts in HOSTS.items():
            for trouble in TROUBLES:
                is_other = (placed == "split") == (trouble in ("losses", "leaves"))
                slow = [pytest.mark.long] if is_other or len(tags) == 3 else []
                yield pytest.param(tags, hosts, (trouble,), id=f"{answer}, {placed}, {trouble}", marks=slow)
            if len(tags) < 3:
                slow = [pytest.mark.long] if len(tags) == 2 or placed == "together" else []
                case = f"{answer}, {placed}, a crash and a loss"
                yield pytest.param(tags, hosts, ("crashes", "losses"), id=case, marks=slow)


@pytest.mark.parametrize(("tags", "hosts", "troubles"), list(cases()))
def test_every_run_ends_with_everything_told_freed_and_delivered(
    tags: tuple[str, ...], hosts: Hosts, troubles: tuple[str, ...]
) -> None:  # E11, E14, E15
    found = check(tags, hosts, troubles)
    print(f"{found.worlds} worlds, {found.steps} steps")
    assert found.worlds >= 10


CLEAN, RUNNING, ENDING = PartitionState.CLEAN, PartitionState.RUNNING, PartitionState.ENDING
WRONG_TABLES: dict[str, tuple[PartitionTable, str]] = {
    "a walk is entered without its name": (
        {(CLEAN, PartitionEvent.ENTERED): (RUNNING, ENTER[1:])}, "runs under",
    ),
    "a parked input is not released": (
        {(CLEAN, PartitionEvent.ENTERED): (RUNNING, (ENTER[0], ENTER[2]))}, "the inputs are",
    ),
    "a parked input is released to the walk before": (
        {(CLEAN, PartitionEvent.ENTERED): (RUNNING, (ENTER[1], ENTER[0], ENTER[2]))}, "the inputs are",
    ),
    "what is entered is not ingested": (
        {(CLEAN, PartitionEvent.ENTERED): (RUNNING, ENTER[:2])}, "nothing is owed",
    ),
    "a partition is never clean": ({(RUNNING, PartitionEvent.QUIET): (RUNNING, ())}, "cannot happen|nothing is owed"),
    "a partition is clean while a pass runs": (
        {(RUNNING, PartitionEvent.PASSED): (CLEAN, ())}, "runs under|cannot happen|freed while",
    ),
    "a handoff is not sent": ({(CLEAN, PartitionEvent.LEFT): (PartitionState.HANDED_OVER, ())}, "nothing is owed"),
    "an end does not wait for the pass": (
        {(RUNNING, PartitionEvent.ENDED): (PartitionState.DONE, FINISH)}, "freed while a pass runs",
    ),
    "an end waits for the first of two passes": (
        {(ENDING, PartitionEvent.PASSED): (PartitionState.DONE, FINISH)}, "freed while a pass runs",
    ),
    "an end that waited tells nobody": (
        {(ENDING, PartitionEvent.QUIET): (PartitionState.DONE, FINISH[1:])}, "nothing is owed",
    ),
    "an end that waited frees nothing": (
        {(ENDING, PartitionEvent.QUIET): (PartitionState.DONE, FINISH[:1])}, "nothing is owed",
    ),
    "a partition is done without telling its consumers": (
        {(CLEAN, PartitionEvent.ENDED): (PartitionState.DONE, FINISH[1:])}, "nothing is owed",
    ),
    "a partition that was not begun is not ended": (
        {(PartitionState.IDLE, PartitionEvent.ENDED): (PartitionState.IDLE, ())}, "nothing is owed",
    ),
}  # fmt: skip


# By default those that are found out soonest, of handing over, of ending and of passes.
SOON = {"what is entered is not ingested", "an end does not wait for the pass", "an end that waited frees nothing"}


@pytest.mark.parametrize("name", by_default(SOON, WRONG_TABLES))
def test_a_wrong_table_is_found_out(name: str) -> None:  # E7, E8
    rows, says = WRONG_TABLES[name]
    with pytest.raises((Violation, AssertionError), match=says):
        check(ANSWERS["two states"], TOGETHER if "two passes" in name else SPLIT, ("leaves",), {**PARTITION, **rows})


class Hasty(TwoPartitions):
    """Workers that take a chunk of another walk while one runs."""

    def may_take(self, run: PartitionRun, walk: str | None) -> bool:
        return run.state in (CLEAN, RUNNING)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({}, "RUNNING cannot happen ENTERED"),
        ({(RUNNING, PartitionEvent.ENTERED): (RUNNING, ENTER)}, "runs under"),
        ({(RUNNING, PartitionEvent.ENTERED): (RUNNING, ())}, "runs after|runs under|nothing is owed"),
    ],
)
def test_a_walk_that_is_entered_while_another_runs_is_found_out(rows: PartitionTable, says: str) -> None:  # E8
    system = Hasty(ANSWERS["two states"], TOGETHER, {**PARTITION, **rows})
    with pytest.raises((Violation, AssertionError), match=says):
        search(system.start(**dict.fromkeys(TROUBLES, 0)), system.steps, system.at_rest)


class GoesBack(StreamBuffer):
    """Lets another worker's position rewind its own."""

    def hear(self, position: StreamPosition) -> None:
        self.taken = position
        super().hear(position)


class FinalUnderTheWalkBefore(StreamBuffer):
    """Takes the last item for the final chunk, without asking for its walk."""

    def pop(self) -> Chunk | None:
        self.last_walk = None
        return super().pop()


class IgnoresMarkers(StreamBuffer):
    """Waits for the items that went to another worker."""

    def mark(self, index: int, walk: str | None) -> None:
        pass


class ForgetsTheEnd(StreamBuffer):
    """Waits for an item that would move the walk on, at the end too."""

    def end(self, index: int) -> None:
        if index in self.items or index - 1 in self.items:
            super().end(index)


WRONG_BUFFERS: dict[type[StreamBuffer], tuple[str, str]] = {
    GoesBack: ("two states", "runs after|nothing is owed"),
    FinalUnderTheWalkBefore: ("one state", "nothing is owed|two final"),
    IgnoresMarkers: ("two states", "nothing is owed"),
    ForgetsTheEnd: ("one state", "nothing is owed"),
}


@pytest.mark.parametrize("kind", WRONG_BUFFERS)
def test_a_wrong_buffer_is_found_out(kind: type[StreamBuffer]) -> None:  # E8, E9, E10, E11
    answer, says = WRONG_BUFFERS[kind]
    with pytest.raises((Violation, AssertionError), match=says):
        check(ANSWERS[answer], SPLIT, (), kind=kind)
