# SPDX-License-Identifier: Apache-2.0
"""Estimates of waits, from measured rates."""

import pytest

from pontil.runtime.proxy.fleet.service_rate import MEMORY_SECONDS, PromptRate, Seats, ServiceRate, WaitEstimate
from pontil.runtime.proxy.routing.policy import WorkerLoad

LOAD = WorkerLoad("m", "mixed:0", "mixed", "e", in_flight=0, free_blocks=10, seats=4, context=100)


def test_prompts_are_measured_while_there_are_any() -> None:
    rate = PromptRate()
    assert rate.per_second is None
    rate.pass_time(0.0, True)
    rate.pass_time(2.0, True)
    rate.add(3_000)
    assert rate.per_second == pytest.approx(1_500)
    # Idle time does not lower the rate, and tokens computed while nothing was measured do not raise it.
    rate.pass_time(50_000.0, False)
    rate.add(10_000)
    assert rate.per_second == pytest.approx(1_500)


def test_what_was_long_ago_counts_less() -> None:
    rate, now = PromptRate(), 0.0
    for speed in (100, 1_000):
        for _ in range(20):
            rate.pass_time(now := now + 1.0, True)
            rate.add(speed)
    assert rate.per_second == pytest.approx(1_000, rel=0.05)
    rate.pass_time(now + 10 * MEMORY_SECONDS, True)
    assert (rate.per_second or 0.0) < 10


@pytest.mark.parametrize(
    ("roles", "seats"),
    [
        ({"mixed": 1}, Seats(3, 4)),
        ({"prefill": 1, "decode": 3}, Seats(1, 4)),
        # Without a pair every worker generates.
        ({"decode": 5}, Seats(0, 4)),
        ({}, Seats(0, 0)),
    ],
)
def test_seats_are_those_of_the_workers_that_generate(roles: dict[str, int], seats: Seats) -> None:
    loads = [WorkerLoad(role, role, role, "", 0, 10, 4, 100, taken=taken) for role, taken in roles.items()]
    assert Seats.of(loads) == seats


def test_the_slower_of_the_two_is_what_one_waits_for() -> None:
    # 100 tokens a second; four seats, each kept for 8 s, so that one is free every 2 s.
    full, free = WaitEstimate(100.0, Seats(0, 4), 8.0), WaitEstimate(100.0, Seats(4, 4), 8.0)
    assert full.after(100, 0) == 2.0 and full.after(1_000, 0) == 10.0
    assert full.after(0, 3) == 8.0
    assert free.after(100, 3) == 1.0 and free.after(0, 4) == 2.0
    assert WaitEstimate(100.0, Seats(0, 0), 8.0).after(0, 9) == 0.0


def test_prompts_that_wait_for_a_seat_say_nothing_about_speed() -> None:
    seats = [Seats(1, 1)]
    rate = ServiceRate(lambda: seats[0])
    rate.pass_time(0.0, 1)
    rate.pass_time(1.0, 1)
    rate.prompts.add(500)
    seats[0] = Seats(0, 1)
    for second in range(2, 60):
        rate.pass_time(float(second), 1)
    assert rate.prompts.per_second == pytest.approx(500)


def test_those_that_run_for_long_are_believed_before_they_end() -> None:
    rate = ServiceRate(lambda: Seats(0, 2))
    rate.begun(0.0)
    rate.pass_time(30.0, 0)
    assert rate.longest_stay == 30.0
    rate.answered(1.0, 5.0)
    rate.ended(0.0)
    assert rate.longest_stay == 1.0 and rate.running == 0
