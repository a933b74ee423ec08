# SPDX-License-Identifier: Apache-2.0
"""The times of steps: those that were measured are found again, and more work never takes less."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_profile import SHARED, milliseconds, small_profile

from pontil.runtime.planner.device_profile import LendingTimes, ProfileError, StepTimes
from pontil.runtime.planner.step_costs import Curve, StepCosts, StepWork, fitted

TIMES = small_profile().times
COSTS = StepCosts(TIMES)


@given(st.integers(0, 100), st.integers(0, 500), st.integers(0, 300), st.integers(0, 500))
def test_steps_take_what_measured_ones_say(rows: int, context: int, tokens: int, before: int) -> None:
    tokens = tokens if tokens >= 16 else 0
    if not rows + tokens:
        return
    work = StepWork(rows, rows * context, tokens, tokens * before)
    assert COSTS.step(work) * 1e3 == pytest.approx(milliseconds(work))


def test_lent_cores_change_steps_as_they_were_measured() -> None:
    """Between measured sizes evenly, outside of them as at the edge, and prompts decide of a step of both kinds."""
    factors = ((4.0, 0.0, 0.6), (1.0, 0.0, 0.8), (0.0, 16.0, 0.5), (0.0, 64.0, 0.7))
    lent = StepCosts(TIMES, LendingTimes(factors)).lent
    assert [lent(StepWork(rows, 0, 0, 0)) for rows in (1, 2, 4, 9)] == pytest.approx([0.8, 0.8 - 0.2 / 3, 0.6, 0.6])
    assert [lent(StepWork(3, 0, tokens, 0)) for tokens in (1, 16, 40, 99)] == pytest.approx([0.5, 0.5, 0.6, 0.7])
    assert COSTS.lent(StepWork(1, 0, 0, 0)) == COSTS.lent(StepWork(0, 0, 16, 0)) == 1.0


def test_what_both_kinds_share_is_taken_once() -> None:
    assert COSTS.together.at(5, 100) * 1e3 == pytest.approx(-SHARED)


@given(st.sampled_from([1, 4, 8]), st.sampled_from([16, 64]), st.floats(0, 9), st.floats(0, 99))
def test_steps_of_both_kinds_take_what_those_of_their_sizes_took(
    rows: int, tokens: int, less: float, more: float
) -> None:
    """One row beside few prompt tokens saves, many beside many take longer than apart."""
    sizes = [(rows, tokens) for rows in (1, 8) for tokens in (16, 64)]
    steps = [one for one in TIMES.steps if not (one[0] and one[2])]
    for (few, prompt), longer in zip(sizes, (-less, 0.0, more, 2 * more), strict=True):
        apart = milliseconds(StepWork(few, 128 * few, 0, 0)) + milliseconds(StepWork(0, 0, prompt, prompt * 32))
        steps.append((float(few), 128.0 * few, float(prompt), prompt * 32.0, apart + longer))
    costs = StepCosts(replace(TIMES, steps=tuple(steps)))
    found = costs.step(StepWork(rows, 128 * rows, tokens, tokens * 32))
    apart = costs.answers(rows, 128 * rows) + costs.prompts(tokens, tokens * 32)
    at_rows = {16: {1: -less, 8: more}, 64: {1: 0.0, 8: 2 * more}}[tokens]
    expected = at_rows[rows] if rows in at_rows else (at_rows[1] * 4 + at_rows[8] * 3) / 7
    assert (found - apart) * 1e3 == pytest.approx(expected, abs=1e-6)


def test_rows_never_make_a_step_of_prompts_shorter() -> None:
    steps = [one for one in TIMES.steps if not (one[0] and one[2])]
    costs = StepCosts(replace(TIMES, steps=(*steps, (1.0, 16.0, 64.0, 64.0 * 32, 1.0))))
    assert costs.beside(1, 0.0, 64) == 0.0 < costs.beside(64, 0.0, 64)


def test_pulls_take_what_measured_ones_say() -> None:
    assert [round(COSTS.pull(blocks) * 1e3, 3) for blocks in (1, 8, 16, 31)] == [0.2, 0.573, 1.0, 1.8]


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 100), st.floats(0, 1)), min_size=1, max_size=12))
def test_more_work_never_takes_less_whatever_was_measured(points: list[tuple[int, int, float]]) -> None:
    curve, slope = fitted(points)
    found = [curve.at(size) for size in range(12)]
    assert slope >= 0 and all(later >= earlier >= 0 for earlier, later in pairwise(found))


def test_a_curve_of_one_point_is_flat() -> None:
    assert [Curve(((4, 0.5),)).at(size) for size in (1, 4, 9)] == [0.5] * 3


def test_steps_of_one_kind_alone_are_no_profile() -> None:
    for steps in ([one for one in TIMES.steps if one[0]], [one for one in TIMES.steps if not one[0]]):
        with pytest.raises(ProfileError, match="no steps that only decode, or none of prompts alone"):
            StepCosts(replace(TIMES, steps=tuple(steps)))


def test_a_profile_needs_no_mixed_steps() -> None:
    alone = StepTimes(tuple(one for one in TIMES.steps if not (one[0] and one[2])), TIMES.pulls)
    assert StepCosts(alone).together.at(1, 64) == 0.0
