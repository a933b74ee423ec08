# SPDX-License-Identifier: Apache-2.0
"""The loads of a profile: the times of which they were made are found again."""

import pytest

from pontil.runtime.planner.profile_loads import HEARD, LOADS, ProfileLoad, ReplayedLoad, solved, worker_times


def test_loads_tell_the_times_of_a_request_an_event_a_token_and_a_turn() -> None:
    """One stream has a turn for each event, and eight have one for eight."""
    each = {load: 0.003 + load.tokens * 0.0002 + load.prompt * 0.00001 for load in LOADS}
    assert solved([load.requests * each[load] for load in LOADS]) == pytest.approx((0.003, 0.0002, 0.00001, 0.0))
    seconds = [load.requests * (each[load] + HEARD[load] * 0.0004) for load in LOADS]
    assert solved(seconds) == pytest.approx((0.003, 0.0002, 0.00001, 0.0004))


def test_noise_makes_no_time_negative() -> None:
    assert solved([0.0, 1.0, 0.1, 0.1]) == pytest.approx((1 / 64, 0.0, 0.0, 0.0))


def took(load: ProfileLoad, steps: int, turn: float, row: float, token: float) -> float:
    return steps * turn + load.requests * (load.tokens * row + load.prompt * token)


def replayed(turn: float, row: float, token: float) -> list[ReplayedLoad]:
    """Return loads of some steps each, beside which this process took such times."""
    counts = [(load, load.requests * load.tokens // max(1, load.streams - 1)) for load in LOADS]
    return [ReplayedLoad(steps / 10, steps, took(load, steps, turn, row, token)) for load, steps in counts]


def test_the_times_of_a_worker_are_what_the_launch_took_beside_its_steps() -> None:
    loads = replayed(0.01, 0.02, 0.0001)
    assert worker_times(loads, None) == pytest.approx((0.01, 0.02, 0.0001))
    seconds = [
        one.step_seconds + took(load, one.steps, 0.003, 0.0005, 0.0002) for load, one in zip(LOADS, loads, strict=True)
    ]
    assert worker_times(loads, seconds) == pytest.approx((0.003, 0.0005, 0.0002))


def test_a_launch_that_took_less_than_its_steps_has_no_other_time() -> None:
    loads = replayed(0.01, 0.02, 0.0)
    times = worker_times(loads, [one.step_seconds / 2 for one in loads])
    assert min(times) >= 0.0 and times == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
