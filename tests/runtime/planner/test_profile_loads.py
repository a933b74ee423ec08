# SPDX-License-Identifier: Apache-2.0
"""What the loads of a profile say: the times of which they were made are found again."""

import pytest

from pontil.runtime.planner.profile_loads import LOADS, ReplayedLoad, solved, turn_and_row


def test_loads_tell_the_times_of_a_request_an_event_and_a_token() -> None:
    seconds = [load.requests * (0.003 + load.tokens * 0.0002 + load.prompt * 0.00001) for load in LOADS]
    assert solved(seconds) == pytest.approx((0.003, 0.0002, 0.00001))


def test_noise_makes_no_time_negative() -> None:
    assert solved([0.0, 1.0, 0.1, 0.1]) == pytest.approx((1 / 64, 0.0, 0.0))


def replayed(turn: float, row: float) -> list[ReplayedLoad]:
    """Return loads of some steps each, beside which this process took these times for a step and a row."""
    counts = [(load.requests * load.tokens, max(1, load.streams - 1)) for load in LOADS]
    return [ReplayedLoad(rows / 10, rows // each, rows, rows // each * turn + rows * row) for rows, each in counts]


def test_the_time_of_a_turn_and_a_row_is_what_the_launch_took_beside_its_steps() -> None:
    loads = replayed(0.01, 0.02)
    assert turn_and_row(loads, None) == pytest.approx((0.01, 0.02))
    seconds = [one.step_seconds + one.steps * 0.003 + one.rows * 0.0005 for one in loads]
    assert turn_and_row(loads, seconds) == pytest.approx((0.003, 0.0005))


def test_a_launch_that_took_less_than_its_steps_has_no_other_time() -> None:
    loads = replayed(0.01, 0.02)
    assert turn_and_row(loads, [one.step_seconds / 2 for one in loads]) == (0.0, 0.0)
