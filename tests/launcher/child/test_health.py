# SPDX-License-Identifier: Apache-2.0
import pytest

from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.health import HealthLimits, HealthSigns, judge

LIMITS = HealthLimits()
READY, STARTING = ChildState.READY, ChildState.STARTING


@pytest.mark.parametrize(
    ("state", "signs", "now", "complaint"),
    [
        (READY, HealthSigns(0, last_beat=10), 13.0, None),
        (READY, HealthSigns(0, last_beat=10), 13.1, "no heartbeat"),
        (READY, HealthSigns(0, last_beat=10, busy_at=38), 39.9, None),
        (READY, HealthSigns(0, last_beat=10, busy_at=40), 40.1, "computed for 30 s without a heartbeat"),
        (READY, HealthSigns(0, last_beat=10, busy_at=16), 19.1, "no heartbeat for 9.1 s"),
        (READY, HealthSigns(0, last_beat=10, busy_at=9), 13.1, "no heartbeat for 3.1 s"),
        (READY, HealthSigns(0, last_beat=10, step_age=29, working=True), 10.9, None),
        (READY, HealthSigns(0, last_beat=10, step_age=29.5, working=True), 10.6, "no step for 30 s"),
        (READY, HealthSigns(0, last_beat=10, step_age=9999, working=False), 10.6, None),
        (STARTING, HealthSigns(0, last_beat=540), 600, None),
        (STARTING, HealthSigns(0, last_beat=0), 60.1, "no heartbeat for 60 s while it started"),
        (STARTING, HealthSigns(0, last_beat=600), 600.1, "not ready after 600 s"),
        (STARTING, HealthSigns(0, last_beat=99_999, waits=True), 100_000, None),
        (STARTING, HealthSigns(0, last_beat=0, waits=True), 60.1, "no heartbeat for 60 s while it started"),
        (STARTING, HealthSigns(0, last_beat=1, closed_at=1), 2.1, "closed its report pipe"),
        (READY, HealthSigns(0, last_beat=1, closed_at=1), 1.9, None),
        (ChildState.DRAINING, HealthSigns(0, last_beat=0), 99, None),
        (ChildState.DRAINING, HealthSigns(0, last_beat=0, closed_at=97), 99, "closed its report pipe"),
        (ChildState.KILLED, HealthSigns(0, last_beat=0, closed_at=0), 99, None),
        (ChildState.GIVEN_UP, HealthSigns(0, last_beat=0, closed_at=0), 99, None),
    ],
)
def test_judgement(state: ChildState, signs: HealthSigns, now: float, complaint: str | None) -> None:
    said = judge(state, signs, LIMITS, now)
    assert said is None if complaint is None else complaint in (said or "")
