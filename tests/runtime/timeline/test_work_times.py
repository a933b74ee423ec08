# SPDX-License-Identifier: Apache-2.0
"""Times that a worker notes."""

from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.timeline.work_times import MOST_KEPT, PartTimes, WorkTimes


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 256)), max_size=600))
def test_many_parts_become_fewer_longer_ones(steps: list[tuple[float, int]]) -> None:
    parts, now = PartTimes(), 10.0
    for seconds, tokens in steps:
        parts.add(now, now + seconds, tokens)
        now += seconds
    assert len(parts.rows) <= MOST_KEPT
    assert sum(row[2] for row in parts.rows) == sum(tokens for _, tokens in steps)
    numbers = parts.since(10.0, now - 10.0)
    times = [number for place, number in enumerate(numbers) if place % 3 < 2]
    assert times == sorted(times) and all(0 <= at <= now - 10.0 for at in times)
    if steps:
        assert (parts.rows[0][0], parts.rows[-1][1]) == (10.0, now)


def test_preemptions_are_bounded_and_tokens_first_and_last() -> None:
    times = WorkTimes()
    for step in range(1000):
        times.preempt(float(step))
        times.token(float(step))
    assert times.preempted == [float(step) for step in range(MOST_KEPT)]
    assert (times.first, times.last) == (0.0, 999.0)
