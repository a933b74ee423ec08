# SPDX-License-Identifier: Apache-2.0
"""Gaps between tokens, of answers however long."""

import math

from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.timeline.step_gaps import BUFFER, MOST_ENTRIES, StepGaps


@given(st.lists(st.floats(0.001, 10), max_size=300), st.integers(1, 40))
def test_folding_loses_neither_time_nor_the_largest_gap(pauses: list[float], repeated: int) -> None:
    gaps, now = StepGaps(), 100.0
    gaps.note(now)
    for pause in pauses * repeated:
        now += pause
        gaps.note(now)
    shown = gaps.shown(99.0)
    assert shown.begin == 1.0 and len(gaps.arrivals) == 0
    assert len(shown.steps) == len(shown.seconds) == len(shown.largest) <= MOST_ENTRIES
    assert sum(shown.steps) == len(pauses) * repeated
    assert math.isclose(math.fsum(shown.seconds), now - 100.0, abs_tol=1e-6)
    if pauses:
        assert math.isclose(max(shown.largest), max(pauses), abs_tol=1e-6)
        assert all(one <= whole for one, whole in zip(shown.largest, shown.seconds, strict=True))


def test_rows_of_one_message_are_one_step() -> None:
    gaps = StepGaps()
    for now in (5.0, 5.0, 5.0, 6.0, 6.0, 8.0):
        gaps.arrivals.append(now)
    assert gaps.shown(5.0).steps == (1, 1) and gaps.shown(5.0).seconds == (1.0, 2.0)


def test_the_buffer_is_settled_when_it_is_full() -> None:
    gaps = StepGaps()
    for step in range(10 * BUFFER):
        gaps.note(float(step))
        assert len(gaps.arrivals) < BUFFER
    assert StepGaps().shown(3.0).to_json() == {"begin": 0.0, "seconds": [], "largest": [], "steps": []}
