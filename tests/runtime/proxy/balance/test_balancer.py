# SPDX-License-Identifier: Apache-2.0
"""The choice of role changes: bounded and without oscillation whatever it is told, and the best split in the end."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.proxy.balance.balancer import (
    ALIKE,
    CALM,
    ENOUGH,
    ERROR,
    MARGIN,
    PAUSE,
    REVERSAL,
    RoleBalancer,
    gain,
)
from pontil.runtime.proxy.balance.goodput import FULL, AskedRequest, GoodputModel, RequestMix, StepLine
from pontil.runtime.proxy.balance.needs import Needs

SPLITS = st.tuples(st.integers(1, 8), st.integers(1, 8))
AMOUNTS = st.floats(0.0, 20.0)
# A look at the load: the seconds since the last one, and what is needed.
LOOKS = st.lists(st.tuples(st.floats(0.0, 30.0), AMOUNTS, AMOUNTS), max_size=60)
# Factors on needs that stay the same, as they are measured: as wrong as they may be.
TREMBLING = st.floats(1 - ERROR, 1 + ERROR)
NOISE = st.lists(st.tuples(TREMBLING, TREMBLING), min_size=120, max_size=120)


@st.composite
def limited(draw: st.DrawFn) -> Needs:
    """Return needs with limits, of any costs and lengths."""
    amount, seconds = partial(st.floats, 0.0), st.sampled_from([0.02, 0.15, 1.0, 8.0, inf])
    asked = st.builds(AskedRequest, st.floats(0.1, 1.0), st.integers(0, 2048), st.integers(1, 512))
    mix, token = RequestMix(draw(st.lists(asked, min_size=1, max_size=4))), draw(st.floats(1e-4, 1e-2))
    line = StepLine(draw(st.floats(1e-3, 0.2)), draw(amount(0.01)), draw(st.floats(1.0, 64.0)))
    places = draw(st.none() | st.floats(1.0, 20.0))
    work, tokens = draw(amount(10.0)), draw(amount(500.0))
    model = GoodputModel(mix, work, tokens, token, line, draw(seconds), draw(seconds), places)
    return Needs(work, draw(AMOUNTS), token * mix.prompt, model=model)


def changes(split: tuple[int, int], looks: list[tuple[float, float, float]]) -> list[tuple[float, str]]:
    """Return the changes, with their times, of a site that carries each out at once."""
    return followed(split, [(seconds, Needs(prompts, answers)) for seconds, prompts, answers in looks])


def followed(split: tuple[int, int], looks: list[tuple[float, Needs]]) -> list[tuple[float, str]]:
    balancer, now, (prefill, decode), made = RoleBalancer(), 0.0, split, []
    for seconds, needs in looks:
        now += seconds
        role = balancer.decide(now, needs, prefill, decode)
        if role is not None:
            step = 1 if role == "prefill" else -1
            prefill, decode = prefill + step, decode - step
            balancer.made(now, role)
            made.append((now, role))
        assert min(prefill, decode) >= 1 and prefill + decode == sum(split)
    return made


@given(SPLITS, LOOKS)
def test_changes_are_bounded_whatever_the_load_does(
    split: tuple[int, int], looks: list[tuple[float, float, float]]
) -> None:
    """Each role keeps a worker, and a change waits for its pause: a longer one to go back."""
    for (before, first), (after, second) in pairwise(changes(split, looks)):
        assert after - before >= (PAUSE if first == second else REVERSAL)


@given(SPLITS, AMOUNTS, AMOUNTS, NOISE)
def test_a_load_that_stays_the_same_is_not_followed_back(
    split: tuple[int, int], prompts: float, answers: float, noise: list[tuple[float, float]]
) -> None:
    """No oscillation: however what is measured trembles, workers change in one direction only."""
    looks = [(1.0, prompts * more, answers * less) for more, less in noise]
    assert len({role for _, role in changes(split, looks)}) <= 1


@given(SPLITS, st.lists(st.tuples(st.floats(0.0, 30.0), limited()), max_size=30))
def test_changes_are_bounded_with_limits_too(split: tuple[int, int], looks: list[tuple[float, Needs]]) -> None:
    for (before, first), (after, second) in pairwise(followed(split, looks)):
        assert after - before >= (PAUSE if first == second else REVERSAL)


@given(SPLITS, limited(), NOISE)
def test_limits_and_a_load_that_stays_the_same_have_one_direction(
    split: tuple[int, int], needs: Needs, noise: list[tuple[float, float]]
) -> None:
    """No oscillation, with limits too."""
    assert len({role for _, role in followed(split, [(1.0, needs.times(*one)) for one in noise[:60]])}) <= 1


@given(SPLITS, limited())
def test_no_change_loses_requests(split: tuple[int, int], needs: Needs) -> None:
    """A split with less pressure is not taken where fewer requests are predicted to keep their limits."""
    (prefill, decode), before = split, needs.kept(*split)
    for _, role in followed(split, [(1.0, needs)] * 60):
        step = 1 if role == "prefill" else -1
        prefill, decode = prefill + step, decode - step
        assert needs.kept(prefill, decode) >= before - ALIKE
        before = needs.kept(prefill, decode)


def test_pressure_alone_is_not_followed_where_limits_would_be_missed() -> None:
    """Prompts ask for a third worker, and the one that would be left to decode keeps no limit."""
    line = StepLine(0.1, 0.004, 32.0)
    mix = RequestMix([AskedRequest(1.0, 256, 16)])
    missed = GoodputModel(mix, 1.9, 110.0, 0.002, line, 8.0, 0.15, 2.9)
    needs = Needs(2.4, 0.7)
    assert gain("prefill", needs, 2, 2) > 0.0 and followed((2, 2), [(1.0, needs)] * 60)
    assert followed((2, 2), [(1.0, replace(needs, model=missed))] * 60) == []


def test_limits_ask_for_a_change_that_pressure_does_not_ask_for_and_later() -> None:
    """Four tokens notice the steps until they join: one worker more has room for them, whatever the pressure is."""
    line, mix = StepLine(0.2, 0.008, 32.0), RequestMix([AskedRequest(1.0, 64, 4)])
    model = GoodputModel(mix, 1.3, 13.5, 0.0046, line, 8.0, 0.3, 3.9)
    assert model.share(1, 3) > 1.15 * model.share(2, 2) > model.share(3, 1)
    assert followed((2, 2), [(1.0, Needs(1.0, 1.0))] * 600) == []
    told = followed((2, 2), [(1.0, Needs(1.0, 1.0, model=model))] * 600)
    assert [role for _, role in told] == ["decode"] and told[0][0] > 10.0
    trembling = [replace(model, prompts=1.3 * part, tokens=13.5 * part) for part in (0.0, 1.0, 0.0)] * 200
    assert followed((2, 2), [(1.0, Needs(1.0, 1.0, model=one)) for one in trembling]) == [], "it comes and goes"


@given(SPLITS, AMOUNTS, AMOUNTS)
def test_a_split_is_left_if_another_one_is_better(split: tuple[int, int], prompts: float, answers: float) -> None:
    needs, (prefill, decode) = Needs(prompts, answers), split
    for _, role in changes(split, [(1.0, prompts, answers)] * 300):
        step = 1 if role == "prefill" else -1
        before = needs.pressure(prefill, decode)
        prefill, decode = prefill + step, decode - step
        assert needs.pressure(prefill, decode) < before
    assert all(gain(role, needs, prefill, decode) <= 0.01 for role in ("prefill", "decode"))


@given(SPLITS, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
def test_there_and_back_both_pay_only_if_the_load_has_changed(
    split: tuple[int, int], prompts: float, answers: float, later: float, fewer: float
) -> None:
    """No oscillation, with a bound: the ratio of both kinds of work has changed by more than both errors."""
    prefill, decode = split
    if gain("prefill", Needs(prompts, answers), prefill, decode) <= -MARGIN:
        return
    if gain("decode", Needs(later, fewer), prefill + 1, decode - 1) <= -MARGIN:
        return
    factor = ((1 + ERROR) / (1 - ERROR)) ** 2
    assert prompts * fewer > factor * later * answers


@given(SPLITS, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
def test_a_load_that_turns_as_soon_as_it_is_followed_is_followed_ever_later(
    split: tuple[int, int], prompts: float, answers: float, later: float, fewer: float
) -> None:
    """No oscillation, against the worst load: in half an hour it turns roles in no more than one of 40 s, and some."""
    balancer, (prefill, decode), loads = RoleBalancer(), split, [Needs(prompts, answers), Needs(later, fewer)]
    made = list[str]()
    for now in range(1800):
        role = balancer.decide(float(now), loads[0], prefill, decode)
        if role is not None:
            step = 1 if role == "prefill" else -1
            prefill, decode = prefill + step, decode - step
            balancer.made(float(now), role)
            made.append(role)
            loads.reverse()
    assert sum(first != second for first, second in pairwise(made)) <= 1800 / 40 + 6


def test_each_time_back_has_to_gain_twice_as_much() -> None:
    """A load that turns whenever it was followed is followed ever later, and after a while of rest as at first."""
    balancer, now, counts, waits = RoleBalancer(), 0.0, [2, 2], list[float]()
    for phase in range(8):
        needs, since = (Needs(3.0, 0.5), Needs(0.5, 3.0))[phase % 2], now
        while (role := balancer.decide(now, needs, *counts)) is None:
            now += 1.0
        step = 1 if role == "prefill" else -1
        counts = [counts[0] + step, counts[1] - step]
        balancer.made(now, role)
        waits.append(now - since)
        assert role == ("prefill", "decode")[phase % 2]
    assert waits[-1] > 2 * waits[1]
    assert balancer.hold(0.0) > 4.0 and balancer.hold(600.0) < 1.01


def test_what_gains_much_is_done_soon_and_what_gains_little_is_not() -> None:
    def seconds(prompts: float, answers: float) -> float | None:
        made = changes((2, 2), [(0.5, prompts, answers)] * 100)
        return made[0][0] if made else None

    much, some = seconds(6.0, 0.5), seconds(2.6, 0.9)
    assert much is not None and some is not None and much < some
    # Of three times as much as can be done a third is gained at once, of less than is noticed nothing.
    assert much <= ENOUGH / (1 / 3 - MARGIN) + 1.0
    assert seconds(2.6, 1.3) is None and seconds(CALM * FULL, 0.0) is None


def test_a_stopped_proxy_makes_up_for_nothing() -> None:
    """Needs that it saw once do not count for all the time that it was stopped."""
    assert changes((2, 2), [(1.0, 0.1, 0.1), (3600.0, 2.6, 0.9)]) == []
