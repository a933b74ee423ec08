# SPDX-License-Identifier: Apache-2.0
"""Sequences are admitted by priority, then by arrival; the last in that order is preempted; and no token changes."""

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis.strategies import integers, lists
from tiny import build, check_free, drain, reference, rig, sequence

from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.models.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


def ranked(name: str, priority: int, length: int = 20, tokens: int = 6, **params: object) -> Sequence:
    made = sequence(name, [5 + (length * len(name) + position) % 90 for position in range(length)], tokens, **params)
    made.standing.priority = priority
    return made


def test_the_lowest_number_is_admitted_first(model: Model) -> None:
    ours = rig(model, seats=1)
    for name, priority in (("runs", 9), ("late", 5), ("first", -1), ("later", 5), ("second", 0)):
        ours.engine.add(ranked(name, priority))
        ours.engine.step()
    finished: list[str] = []
    while ours.engine.has_work:
        finished += [output.sequence.id for output in ours.engine.step() if output.finish]
    assert finished == ["runs", "first", "second", "late", "later"], "what runs is not interrupted"
    check_free(ours)


def test_the_last_in_order_gives_way_though_it_came_first(model: Model) -> None:
    tight = rig(model, blocks=8)
    low, high = ranked("low", 1, 30, 60), ranked("high", 0, 31, 60)
    tight.engine.add(low)
    tight.engine.step()
    tight.engine.add(high)
    while not tight.scheduler.preemptions:
        tight.engine.step()
    assert tight.scheduler.waiting == [low] and tight.scheduler.running == [high]
    drain(tight.engine)
    check_free(tight)


@settings(deadline=None, max_examples=examples(2, 20))
@given(priorities=lists(integers(-2, 2), min_size=5, max_size=5))
def test_no_token_depends_on_it(model: Model, priorities: list[int]) -> None:
    def some() -> list[Sequence]:
        return [ranked(f"{'n' * (i + 1)}", p, 18 + i, 40, temperature=1.3, seed=i) for i, p in enumerate(priorities)]

    roomy, tight = rig(model, caching=False), rig(model, blocks=13)
    for engine in (roomy.engine, tight.engine):
        for one in some():
            engine.add(one)
    assert drain(tight.engine) == drain(roomy.engine)
    assert not roomy.scheduler.preemptions
    check_free(tight)


def test_choices_share_their_priority(model: Model) -> None:
    ours = rig(model, seats=2)
    ours.engine.add(ranked("both", -5, n=2))
    ours.engine.step()
    assert [one.order for one in ours.scheduler.running] == [(-5, 1, 0), (-5, 1, 1)]
    drain(ours.engine)
