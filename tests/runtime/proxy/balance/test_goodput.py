# SPDX-License-Identifier: Apache-2.0
"""The share of requests that is predicted to keep the limits, beside what happens in virtual time."""

from dataclasses import replace
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.proxy.balance.goodput import (
    AskedRequest,
    GoodputModel,
    RequestMix,
    StepLine,
    Waits,
    WorkerRows,
    at_least,
    blocked,
)

WORK = st.floats(0.0, 20.0)
ROW, BASE, STEP_TOKENS = 0.004, 0.1, 256


def model(prompt: int, answer: int, rate: float, *, helpers: bool = True) -> GoodputModel:
    """Return the model of so many requests a second on the workers of tests/support/checks/balance_trials.py."""
    sizes = [0.5 + (part + 0.5) / 16 for part in range(16)]
    asked = [AskedRequest(1.0, prompt * size, round(answer * sizes[-1 - place])) for place, size in enumerate(sizes)]
    mix = RequestMix(asked)
    # Short prompts share a step with a few others.
    token = 0.002 + 0.04 / min(STEP_TOKENS, 2 * prompt)
    places = 1.0 + (mix.prompt * 15 / 16 + STEP_TOKENS) / mix.prompt if helpers else None
    work = rate * mix.prompt * token
    return GoodputModel(mix, work, rate * mix.behind, token, StepLine(BASE, ROW, 32.0), 8.0, 0.15, places)


@pytest.mark.parametrize(
    ("load", "happened"),
    [
        # The steady loads of seeds of scripts/simulate_balance.py, with what it finds for 1, 2 and 3 prefill workers.
        ((256, 4, 3.04), (0.76, 0.79, 0.60)),
        ((1024, 64, 0.72), (0.74, 0.98, 1.0)),
        ((64, 16, 7.3), (0.71, 0.78, 0.0)),
        ((1024, 4, 0.98), (0.79, 0.83, 0.85)),
        ((1024, 64, 0.75), (0.50, 0.85, 0.86)),
    ],
)
def test_shares_are_about_those_of_whole_launches(load: tuple[int, int, float], happened: tuple[float, ...]) -> None:
    predicted = [model(*load).share(prefill, 4 - prefill) for prefill in (1, 2, 3)]
    assert predicted == pytest.approx(happened, abs=0.25)
    assert happened[predicted.index(max(predicted))] >= 0.9 * max(happened)


@given(st.integers(1, 2048), st.integers(1, 512), st.floats(0.0, 50.0), st.integers(1, 8), st.integers(1, 8))
def test_a_share_is_one(prompt: int, answer: int, rate: float, prefill: int, decode: int) -> None:
    for helpers in (False, True):
        assert 0.0 <= model(prompt, answer, rate, helpers=helpers).share(prefill, decode) <= 1.0 + 1e-9


@given(st.floats(0.1, 50.0), st.integers(1, 64))
def test_answers_alone_want_workers_that_decode(rate: float, answer: int) -> None:
    """The share grows with the workers that draw, while all prompts are cached."""
    shown = replace(model(64, answer, rate), prompts=0.0, places=None)
    shares = [shown.share(1, decode) for decode in range(1, 9)]
    assert shares == sorted(shares)


@given(st.floats(0.0, 30.0), st.integers(1, 9), st.integers(0, 30))
def test_a_queue_loses_what_its_states_say(work: float, workers: int, waiting: int) -> None:
    """The chance of each state is that of the one before it, times the work of each of its workers."""
    term = total = 1.0
    for count in range(1, workers + waiting + 1):
        term *= work / min(count, workers)
        total += term
    assert blocked(work, workers, workers + waiting) == pytest.approx(term / total, abs=1e-6)


@given(st.floats(0.0, 1e9), st.integers(1, 1024), st.floats(0.0, 1e6))
def test_no_load_is_too_much_for_a_queue(work: float, workers: int, waiting: float) -> None:
    assert 0.0 <= blocked(work, workers, workers + waiting) <= 1.0


def test_a_prompt_between_tokens_breaks_a_limit_that_it_does_not_fit_in() -> None:
    """Steps of 8 rows leave 14 ms of 150: a second of prompts fits in 100 of them, and in 20 no more than 0.28 s."""
    step = StepLine(BASE, ROW, 32.0)
    rare, often = (WorkerRows(step, 8.0, 32.0, prompts, 1.0) for prompts in (0.001, 0.5))
    assert rare.keeping(21, 0.15, joins=False) > 0.85 and often.keeping(21, 0.15, joins=False) < 0.3
    assert often.keeping(201, 0.15, joins=False) < rare.keeping(201, 0.15, joins=False)
    assert rare.keeping(1, 0.0, joins=True) == 1.0, "one token has no time per token"


def test_prompts_that_find_an_idle_worker_are_between_no_tokens() -> None:
    step = StepLine(BASE, ROW, 32.0)
    often, seldom = (WorkerRows(step, 1.0, 32.0, 0.5, 1.0, busy) for busy in (1.0, 0.1))
    assert often.keeping(21, 0.15, joins=False) < 0.4 < 0.8 < seldom.keeping(21, 0.15, joins=False)
    few, many = (WorkerRows.of(model(1024, 4, rate), 2.0, 0.3, 3).busy for rate in (0.2, 5.0))
    assert few < 0.05 and many > 0.95
    assert at_least(1, 0.5) == pytest.approx(1 - exp(-0.5)) and at_least(3, 0.0) == 0.0


def test_a_short_answer_notices_how_it_joins() -> None:
    """Two steps until the first row of four are above the limit, of forty they are not."""
    rows = WorkerRows(StepLine(BASE, ROW, 32.0), 5.0, 32.0, 0.0, 0.0)
    assert rows.keeping(4, 0.15, joins=True) < 0.1 < 0.9 < rows.keeping(40, 0.15, joins=True)
    assert rows.keeping(4, 0.15, joins=False) > 0.9


def test_a_queue_that_is_full_keeps_no_limit() -> None:
    assert Waits.of(0.5, 1, 1.0).within(8.0) > 0.99 and Waits.of(2.0, 1, 1.0).within(8.0) < 0.2
    assert Waits.of(2.0, 1, 1.0).within(1e9) == 0.5, "half of what is asked for is never served"
    assert Waits.of(0.0, 1, 1.0).within(-0.1) == 0.0, "the prompt alone is longer than the limit"
    assert Waits.of(0.0, 1, 0.0).within(0.0) == 1.0


def test_a_queue_that_decode_workers_help_with_has_a_longest_wait() -> None:
    """Prompts that would wait for more others than there are places for are computed elsewhere: the rest is in time."""
    waits = Waits.of(0.99, 1, 2.0, longest=4.0)
    assert waits.within(3.9) < 0.1 and waits.within(4.0) == 1.0
    # One worker computes prompts of 2.2 s for 1.9, those of decode workers not counted.
    mix, line = RequestMix([AskedRequest(1.0, 256, 16)]), StepLine(0.4, 0.032, 32.0)
    helped = GoodputModel(mix, 1.9, 9.0, 0.0086, line, 8.0, 0.8, 2.4)
    assert helped.share(1, 3) > 0.7 > 0.5 > replace(helped, first_token=3.0).share(1, 3)
