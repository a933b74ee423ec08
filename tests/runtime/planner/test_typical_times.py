# SPDX-License-Identifier: Apache-2.0
"""The seconds that work usually takes."""

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
