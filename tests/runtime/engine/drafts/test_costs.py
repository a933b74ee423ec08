# SPDX-License-Identifier: Apache-2.0
"""Running estimates for drafts: seconds by rows, and shares of right guesses."""

import pytest

from pontil.runtime.engine.drafts.costs import LEAST_WEIGHT, LinearCost, Rate, StepCost, depth, gain
from pontil.runtime.engine.drafts.policy import SharesRight


def test_steps_of_tiles_are_known_by_their_rows() -> None:
    cost = StepCost()
    for rows in [1] * 30 + [2, 1, 5, 1, 2, 1, 1] * 6:
        cost.add(rows, 0.05 if rows == 1 else 0.08)
    assert cost.seconds(1) == pytest.approx(0.05, rel=0.08) and cost.seconds(2) == pytest.approx(0.08, rel=0.15)
    assert cost.added(1, 1) == pytest.approx(0.03, rel=0.4) and cost.added(1, 0) == 0.0


def test_a_line_is_found_from_its_points() -> None:
    cost = LinearCost()
    cost.add(1, 0.05)
    assert cost.seconds(1) == pytest.approx(0.05) and 0 < cost.per_row < 0.05
    for rows in [1, 4, 9] * 30:
        cost.add(rows, 0.04 + 0.003 * rows)
    assert cost.seconds(6) == pytest.approx(0.058, rel=0.02)
    before = cost.seconds(1)
    cost.add(1, 50.0)
    assert cost.seconds(1) < 1.5 * before, "one disturbed step is no measure"


def test_steps_without_rows_say_nothing_of_rows() -> None:
    cost = LinearCost()
    cost.add(0, 0.05)
    assert (cost.base, cost.per_row) == (0.05, 0.0)
    cost.add(2, 0.07)
    assert 0.0 < cost.per_row <= 0.035


def test_rates_follow_what_happens() -> None:
    rate = Rate(0.7, 8)
    for _ in range(200):
        rate.add(4, 0)
    assert rate.share < 0.05
    for _ in range(60):
        rate.add(4, 4)
    assert rate.share > 0.9
    share = rate.share
    for _ in range(500):
        rate.age()
    assert rate.share == pytest.approx(share) and rate.tried == pytest.approx(LEAST_WEIGHT)
    shares = SharesRight()
    shares.add("a", 3, 8, 0)
    assert shares.expected("a", 3) < shares.expected("b", 3) < SharesRight().expected("b", 3)
    shares.forget("a")
    assert shares.expected("a", 3) == shares.expected("b", 3)


def test_what_a_guess_is_worth() -> None:
    assert gain(1.0, 5) == 5 and gain(0.5, 2) == 0.75 and gain(0.3, 0) == 0
    assert depth(0.5, 0.2, 9) == 2 and depth(0.5, 0.6, 9) == 0 and depth(1.0, 0.9, 3) == 3
