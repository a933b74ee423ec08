# SPDX-License-Identifier: Apache-2.0
"""Sequences that wait for KV from elsewhere: the blocks they hold, their absence from steps, and when they continue."""

import pytest
from tiny import Rig, build, check_free, drain, reference, rig, sequence

from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import FinishReason, SequenceState
from pontil.runtime.models.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    return build(reference())


@pytest.fixture
def two_seats(model: Model) -> Rig:
    return rig(model, seats=2)


def test_who_waits_for_blocks_has_a_seat_and_no_part_in_a_step(two_seats: Rig) -> None:  # C4
    engine, pool = two_seats.engine, two_seats.pool
    parked, running, waiting = (sequence(name, [5 + at] * 40, 30) for at, name in enumerate("abc"))
    assert engine.park(parked) and sequence_fits_beside(two_seats, 2)
    engine.add(running)
    engine.add(waiting)
    for _ in range(3):
        assert [output.sequence.id for output in engine.step()] == ["b"]
    states = [one.state for one in (parked, running, waiting)]
    assert (
        states == [SequenceState.WAITING_FOR_REMOTE_KVS, SequenceState.RUNNING, SequenceState.WAITING]
        and parked.computed == 0
    )
    # Blocks are reserved at admission and picked as they come: once.
    available = pool.available
    for positions in (16, 16, 40):
        assert two_seats.scheduler.memory.grow(parked, positions)
    assert pool.available == available and len(set(parked.blocks)) == 3
    # A sequence whose blocks are here continues in the next step, before any admission.
    engine.promote(parked, 40, [Known(0, [7])])
    assert [output.sequence.id for output in engine.step()] == ["a", "b"] and waiting.state is SequenceState.WAITING
    drain(engine)
    check_free(two_seats)


def sequence_fits_beside(one: Rig, choices: int) -> bool:
    """Return whether a request of so many choices could be parked now; it is released at once."""
    other = sequence("other", [9] * 20, 8, n=choices)
    fits = one.engine.park(other)
    one.engine.end("other", FinishReason.ABORTED)
    return fits


def test_a_step_with_nothing_to_compute_is_an_empty_step(two_seats: Rig) -> None:  # D14
    engine = two_seats.engine
    assert engine.step() == [] and two_seats.scheduler.schedule().spans == ()
    assert engine.park(sequence("a", [5] * 40, 30))
    assert engine.step() == [] and not engine.has_work
    engine.end("a", FinishReason.ABORTED)
    assert engine.step() == [] and not engine.keep_answers()
    check_free(two_seats)
