# SPDX-License-Identifier: Apache-2.0
"""Warnings before a limit is missed."""

import pytest

from pontil.runtime.proxy.balance.limit_watch import AHEAD, LimitWatch
from pontil.runtime.proxy.balance.needs import Needs

COUNTS = {"prefill": 2, "decode": 2, "mixed": 0}


def warned(caplog: pytest.LogCaptureFixture, watch: LimitWatch, pressures: list[float]) -> list[tuple[int, str]]:
    """Return the warnings, each with its second, under decode pressures of ten seconds each."""
    made = []
    for second, pressure in enumerate(pressures):
        caplog.clear()
        watch.look(second * 10.0, Needs(0.1, 2 * pressure), COUNTS)
        made += [(second * 10, record.message) for record in caplog.records]
    return made


def test_a_growing_load_is_said_once_and_before_it_is_too_much(caplog: pytest.LogCaptureFixture) -> None:
    rising = [0.4 + 0.02 * step for step in range(40)]
    ((second, text),) = warned(caplog, LimitWatch(1000.0, 40.0), rising)
    assert 100 <= second < 300, "before the pressure is 1, after 300 s"
    assert text.startswith("--tpot-limit of 40 ms is missed in about 3 min, as the load grows: answers have 2 workers")
    assert second + AHEAD >= 290


def test_it_is_said_again_once_it_was_over(caplog: pytest.LogCaptureFixture) -> None:
    told = warned(caplog, LimitWatch(None, 40.0), [*[1.5] * 10, *[0.3] * 30, *[1.5] * 10])
    assert [second >= 400 for second, _ in told] == [False, True]
    assert "is missed now: answers have 2 workers and need 3" in told[0][1]


@pytest.mark.parametrize(("ttft", "tpot"), [(None, None), (1000.0, None)])
def test_without_its_limit_nothing_is_said(
    caplog: pytest.LogCaptureFixture, ttft: float | None, tpot: float | None
) -> None:
    assert warned(caplog, LimitWatch(ttft, tpot), [1.5] * 20) == []


def test_a_load_that_stays_or_is_small_is_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    watch = LimitWatch(None, 40.0)
    assert warned(caplog, watch, [0.8 + 0.02 * (step % 3) for step in range(60)]) == []
    # A load that begins grows fast, and is small.
    assert warned(caplog, LimitWatch(None, 40.0), [0.06 * step for step in range(7)]) == []
