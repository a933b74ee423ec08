# SPDX-License-Identifier: Apache-2.0
"""Limits of one key."""

from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.errors import RequestError, TooManyRequests
from pontil.runtime.proxy.admission.rate_limits import JITTER, MOST_LOOKS, MOST_QUIET, RateLimits
from pontil.runtime.proxy.requests.ticket import Allowance, Ticket
from pontil.runtime.proxy.siblings.usage_table import StatedUsage, UsageTable

MUCH = 10**6


def let_in(limits: RateLimits, allowance: Allowance, requests: int = 1, tokens: int = 10, now: float = 0.0) -> None:
    limits.check(Ticket(caller="alice", allowance=allowance), requests, tokens, now)
    limits.enter("alice", requests, tokens, now)


def test_without_limits_everything_is_let_in() -> None:
    limits = RateLimits()
    for _ in range(100):
        let_in(limits, Allowance(), requests=64, tokens=MUCH)
    assert limits.callers["alice"].requests == 6400


@pytest.mark.parametrize(
    ("allowance", "says"), [(Allowance(requests=2), "2 requests"), (Allowance(tokens=25), "20 tok")]
)
def test_what_is_in_flight_has_a_limit(allowance: Allowance, says: str) -> None:
    limits = RateLimits()
    let_in(limits, allowance)
    let_in(limits, allowance)
    with pytest.raises(TooManyRequests, match=says) as caught:
        limits.check(Ticket(caller="alice", allowance=allowance), 1, 10, 0.0)
    assert caught.value.status == 429 and 1 <= caught.value.retry_after <= 1 + JITTER
    limits.check(Ticket(caller="bob", allowance=allowance), 1, 10, 0.0)
    limits.leave("alice", 1, 10)
    limits.check(Ticket(caller="alice", allowance=allowance), 1, 10, 0.0)


def test_all_that_a_request_asks_for_is_let_in_or_nothing() -> None:
    limits, allowance = RateLimits(), Allowance(requests=8)
    let_in(limits, allowance, requests=3)
    with pytest.raises(TooManyRequests):
        limits.check(Ticket(caller="alice", allowance=allowance), 6, 60, 0.0)
    let_in(limits, allowance, requests=5)
    assert limits.callers["alice"].requests == 8


@pytest.mark.parametrize(
    "allowance", [Allowance(requests=63), Allowance(tokens=639), Allowance(rate=63), Allowance(token_rate=639)]
)
def test_what_could_never_be_let_in_is_not_to_be_tried_again(allowance: Allowance) -> None:
    with pytest.raises(RequestError, match="ask for less in one request") as caught:
        RateLimits().check(Ticket(caller="alice", allowance=allowance), 64, 640, 0.0)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("allowance", "unit"), [(Allowance(rate=60), "requests"), (Allowance(token_rate=600), "tokens")]
)
def test_a_rate_is_so_many_per_minute(allowance: Allowance, unit: str) -> None:
    """A minute's worth is allowed at once, then one with each second."""
    limits = RateLimits(jitter=lambda: 1.0)
    for _ in range(60):
        let_in(limits, allowance, now=5.0)
        limits.leave("alice", 1, 10)
    with pytest.raises(TooManyRequests, match=f"{unit} per minute: try again in 2 s") as caught:
        limits.check(Ticket(caller="alice", allowance=allowance), 1, 10, 5.0)
    assert caught.value.retry_after == pytest.approx(1 + JITTER)
    let_in(limits, allowance, now=6.0)
    with pytest.raises(TooManyRequests):
        limits.check(Ticket(caller="alice", allowance=allowance), 1, 10, 6.5)
    let_in(limits, allowance, requests=60, tokens=600, now=66.0)


def test_less_than_one_a_minute_is_a_rate_too() -> None:
    limits, allowance = RateLimits(jitter=lambda: 0.0), Allowance(rate=0.5)
    let_in(limits, allowance)
    with pytest.raises(TooManyRequests) as caught:
        limits.check(Ticket(caller="alice", allowance=allowance), 1, 10, 0.0)
    assert caught.value.retry_after == pytest.approx(120)
    limits.check(Ticket(caller="alice", allowance=allowance), 1, 10, 120.0)


def test_another_allowance_counts_from_when_it_is_known() -> None:
    """Keys are read again while requests run."""
    limits = RateLimits()
    let_in(limits, Allowance(), requests=5)
    with pytest.raises(TooManyRequests):
        limits.check(Ticket(caller="alice", allowance=Allowance(requests=5)), 1, 10, 0.0)
    limits.check(Ticket(caller="alice", allowance=Allowance(requests=6)), 1, 10, 0.0)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), max_size=80))
def test_no_minute_has_more_than_two_minutes_worth(asked: list[tuple[float, int]]) -> None:
    """Over longer times the limit is the rate: the contents of a full bucket, and what flowed into it since."""
    limits, allowance, now = RateLimits(), Allowance(rate=10), 0.0
    begun: list[tuple[float, int]] = []
    for pause, requests in asked:
        now += pause
        try:
            let_in(limits, allowance, requests, now=now)
        except TooManyRequests as refused:
            deepcopy(limits).check(
                Ticket(caller="alice", allowance=allowance), requests, 10, now + refused.retry_after + 1e-6
            )
        else:
            begun.append((now, requests))
    for first, _ in begun:
        for last, _ in begun:
            total = sum(count for at, count in begun if first <= at <= last)
            assert last < first or total <= 10 + 10 * (last - first) / 60 + 1e-6


def test_more_cannot_leave_than_entered() -> None:
    limits = RateLimits()
    limits.enter("alice", 1, 10, 0.0)
    with pytest.raises(AssertionError):
        limits.leave("alice", 2, 10)


def test_callers_that_are_gone_are_forgotten() -> None:
    limits, allowance = RateLimits(), Allowance(rate=60)
    limits.enter("stays", 1, 10, 0.0)
    for number in range(10 * MOST_QUIET):
        limits.check(Ticket(caller=f"caller-{number}", allowance=allowance), 1, 10, float(number))
        limits.enter(f"caller-{number}", 1, 10, float(number))
        limits.leave(f"caller-{number}", 1, 10)
    assert len(limits.callers) <= MOST_QUIET and limits.callers["stays"].requests == 1


def test_a_look_before_the_work_states_nothing(tmp_path: Path) -> None:
    """Else a request that is read for long would take its place from one at another proxy."""
    tables = [UsageTable(tmp_path / "table", number, 2, f"proxy-{number}") for number in range(2)]
    here, there = (RateLimits(table=table) for table in tables)
    here.check(Ticket(caller="alice", allowance=Allowance(requests=1)), 1, 0, 0.0, states=False)
    there.check(Ticket(caller="alice", allowance=Allowance(requests=1)), 1, 10, 0.0)


def test_a_replay_counts_in_the_rate_only() -> None:
    limits, allowance = RateLimits(), Allowance(requests=1, rate=2.0, tokens=10)
    let_in(limits, allowance)
    limits.enter_rate(Ticket(caller="alice", allowance=allowance), 0.0)
    assert limits.callers["alice"].requests == 1 and limits.callers["alice"].tokens == 10
    with pytest.raises(TooManyRequests, match="2 requests per minute"):
        limits.enter_rate(Ticket(caller="alice", allowance=allowance), 0.0)
    limits.enter_rate(Ticket(caller="alice", allowance=allowance), 30.0)
    for _ in range(100):
        limits.enter_rate(Ticket(caller="bob", allowance=Allowance()), 0.0)


def test_many_keys_are_looked_at_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is looked at once before any is looked at again."""
    table = UsageTable(tmp_path / "table", 0, 2, "proxy")
    limits, looked = RateLimits(table=table), list[str]()
    names = [f"caller-{number}" for number in range(3 * MOST_LOOKS + 7)]
    for name in names:
        limits.check(Ticket(caller=name, allowance=Allowance(rate=5.0)), 1, 1, 0.0)

    def others(caller: str) -> dict[tuple[int, int], StatedUsage]:
        looked.append(caller)
        return {}

    monkeypatch.setattr(table, "others", others)
    for _ in range(4):
        before = len(looked)
        limits.look_around(1.0)
        assert 0 < len(looked) - before <= MOST_LOOKS
    assert looked == names
    limits.look_around(2.0)
    assert looked[len(names) :] == names[:MOST_LOOKS]
