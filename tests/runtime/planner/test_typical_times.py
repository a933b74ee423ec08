# SPDX-License-Identifier: Apache-2.0
"""The seconds that work usually takes."""

import random
from math import exp
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.planner.typical_times import TypicalTimes


def test_a_disturbed_step_counts_nothing_and_a_slow_while_its_part() -> None:
    times = TypicalTimes[str]()
    times.add([("a", 1.0), ("a", 9.0), ("b", 3.0), ("a", 1.0)])
    times.add([("b", 3.0), *3 * [("a", 2.0)]])
    assert times.seconds() == {"a": 1.5, "b": 3.0}


@given(st.lists(st.lists(st.floats(0.1, 9), min_size=1, max_size=5), min_size=1, max_size=5), st.floats(0.5, 4))
def test_a_machine_that_is_slower_by_a_factor_takes_as_much_longer(passes: list[list[float]], factor: float) -> None:
    found = []
    for times in (1.0, factor):
        typical = TypicalTimes[str]()
        for some in passes:
            typical.add(("step", times * one) for one in some)
        found.append(typical.seconds()["step"])
    assert found[1] == pytest.approx(factor * found[0])
    assert fmean(map(min, passes)) - 1e-9 <= found[0] <= fmean(map(max, passes)) + 1e-9


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.4])
def test_times_vary_as_much_as_they_were_drawn_to(spread: float) -> None:
    """From one to the next of a kind: kinds of other sizes, and passes that are slower, do not count."""
    chance, times = random.Random(3), TypicalTimes[int]()
    for slow in (1.0, 3.0):
        times.add((kind, slow * kind * exp(chance.gauss(0, spread))) for kind in (1, 2, 1000) for _ in range(500))
        times.add([(7, slow)])
    assert times.variation(lambda kind: kind <= 1000) == pytest.approx(spread, rel=0.1)
    assert times.variation(lambda kind: kind == 7) == 0.0
