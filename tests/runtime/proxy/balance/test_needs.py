# SPDX-License-Identifier: Apache-2.0
"""The workers that a load needs, from fitted costs and limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.proxy.balance.fitted_costs import DecayingRate, FittedCosts
from pontil.runtime.proxy.balance.goodput import FULL
from pontil.runtime.proxy.balance.needs import Needs, TimeLimits


def test_costs_are_those_of_the_steps_that_were_seen() -> None:
    """Steps take 10 ms and 1 ms a row; prompts in steps of 256 tokens 0.5 ms a token beside that."""
    costs = FittedCosts()
    assert costs.prompt_token(256) is None and costs.step(8) == 0.0
    for rows in (2, 4, 8, 16, 4, 2):
        costs.add(50, 50 * (0.01 + 0.001 * rows), 50 * rows, 0)
        costs.add(10, 10 * (0.01 + 256 * 0.0005), 10, 2560)
    assert costs.step(8) == pytest.approx(0.018, rel=0.03) and costs.step(32) == pytest.approx(0.042, rel=0.05)
    assert costs.most_rows(0.03, 64) == pytest.approx(20, rel=0.1)
    assert (costs.most_rows(0.001, 64), costs.most_rows(1.0, 64)) == (1.0, 64)
    assert costs.prompt_token(256) == pytest.approx(0.0005 + 0.01 / 256, rel=0.05)


def test_steps_of_one_kind_are_taken_to_be_half_their_rows() -> None:
    costs = FittedCosts()
    costs.add(100, 2.0, 800, 0)
    assert costs.step(8) == pytest.approx(0.02) and costs.step(16) == pytest.approx(0.03)


@given(st.lists(st.tuples(st.integers(-5, 500), st.floats(-1.0, 100.0), st.integers(-5, 9999), st.integers(0, 99999))))
def test_no_heartbeat_makes_costs_absurd(beats: list[tuple[int, float, int, int]]) -> None:
    costs = FittedCosts()
    for beat in beats:
        costs.add(*beat)
    base, row = costs.line
    assert base >= -1e-9 and row >= 0.0 and costs.step(1) <= costs.step(64)
    token = costs.prompt_token(256)
    assert token is None or token > 0.0


def test_a_rate_forgets() -> None:
    rate = DecayingRate(8.0)
    for second in range(100):
        rate.add(second, 3.0)
    assert rate.per_second(99.0) == pytest.approx(3.0, rel=0.1)
    assert rate.per_second(99.0 + 80.0) < 0.001


def test_pressure_is_that_of_the_shorter_role() -> None:
    needs = Needs(prompts=1.7, answers=1.0)
    assert needs.pressure(1, 1) == pytest.approx(2.0) and needs.pressure(4, 1) == 1.0
    assert (needs.wanted_prefill, needs.wanted_decode, needs.wanted_mixed) == (2, 1, 3)
    assert (Needs(0.0, 0.0).wanted_prefill, Needs(0.0, 0.0).wanted_decode) == (1, 1)


@given(st.floats(0.01, 50.0), st.floats(0.01, 5.0), st.floats(0.01, 20.0))
def test_a_limit_wants_no_fewer_workers(prompts: float, prompt: float, limit: float) -> None:
    free, limited = Needs(prompts, 1.0), Needs(prompts, 1.0, prompt, limit)
    assert limited.wanted_prefill >= free.wanted_prefill
    shares = [limited.prompt_share(count) for count in range(1, 20)]
    assert shares == sorted(shares) and shares[0] > 0.0 and shares[-1] <= FULL


def test_limits_are_given_in_milliseconds() -> None:
    assert TimeLimits.of(1000.0, 40.0) == TimeLimits(1.0, 0.04) and TimeLimits.of(None, None) == TimeLimits()
