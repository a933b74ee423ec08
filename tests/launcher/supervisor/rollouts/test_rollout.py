# SPDX-License-Identifier: Apache-2.0
"""Rollouts against a simulated launch in which workers exit at any time, or never end."""

from dataclasses import replace

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_world import GATE, LIMITS, RolloutWorld, row

from pontil.launcher.child.child_state import ChildState, DrainState
from pontil.launcher.supervisor.rollouts.plan import COMING
from pontil.launcher.supervisor.rollouts.rollout import (
    DRAIN_MARGIN,
    KILL_GRACE,
    MOST_RETREATS,
    PHASES,
    PROXY_MARGIN,
    STOP_GRACE,
    TELL_TIMEOUT,
    VERDICT_MARGIN,
    Rollout,
    RolloutPhase,
)
from pontil.launcher.supervisor.rollouts.rollout_step import (
    ActionKind,
    RolloutGoal,
    RolloutStep,
    WorkerSnapshot,
)

STEP_TIMEOUT = (MOST_RETREATS + 2) * (LIMITS.start + LIMITS.drain + DRAIN_MARGIN) + LIMITS.start + STOP_GRACE
LONGEST = STEP_TIMEOUT + 2 * KILL_GRACE + TELL_TIMEOUT + GATE + VERDICT_MARGIN


NAMES = ("prefill:0", "decode:0", "decode:1", "decode:2")
STATES = st.sampled_from(
    [ChildState.READY] * 5 + [ChildState.STARTING, ChildState.BACKOFF, ChildState.GIVEN_UP, ChildState.EXITED]
)
DUTIES = st.sampled_from([DrainState.WORKING] * 4 + [DrainState.DRAINED, DrainState.DRAINING])


@st.composite
def worlds(draw: st.DrawFn) -> RolloutWorld:
    names = NAMES[: draw(st.integers(1, 4))]
    places = {name: row(name, draw(STATES), draw(DUTIES)) for name in names}
    aims = st.sampled_from(
        [RolloutGoal.DRAINED, RolloutGoal.WORKING, RolloutGoal.RENEWED, RolloutGoal.RENEWED, RolloutGoal.GONE]
    )
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    steps = [RolloutStep(draw(aims), name, rests=draw(st.booleans())) for name in chosen]
    if draw(st.booleans()):
        steps.append(RolloutStep(RolloutGoal.THERE, "decode:9", "decode"))
    is_gated = draw(st.booleans())
    steps = [replace(step, gated=is_gated and step.aim in COMING and not step.rests) for step in steps]
    verdicts = draw(st.dictionaries(st.sampled_from([*NAMES, "decode:9"]), st.sampled_from(["", "it differs"])))
    change, asleep = Rollout(tuple(steps), draw(st.integers(0, 1)), LIMITS), draw(st.sampled_from([None, True, False]))
    return RolloutWorld(places, change, verdicts=verdicts, asleep=asleep)


@settings(max_examples=examples(72, 400), deadline=None)
@given(worlds(), st.data())
def test_every_change_ends_and_never_takes_away_too_many(world: RolloutWorld, data: st.DataObject) -> None:
    steps, kindness = world.change.steps, data.draw(st.sampled_from([(0, 1), (1,), (0, 1, 2), (1, 2), (2,)]))
    before = dict(world.starts)
    limit = LONGEST * len(steps)
    while not world.change.is_over:
        assert world.now <= limit, f"{world.change} does not end"
        world.decide()
        for name in list(world.places):
            world.happen(name, data.draw(st.sampled_from(kindness)))
        # The model of one that waits may be put to sleep meanwhile.
        world.asleep = world.asleep if world.asleep is None else data.draw(st.booleans())
        world.now += data.draw(st.sampled_from([0.1, 1.0, 5.0, 40.0]))
    if world.change.failure is None:
        for step in steps:
            kept(world, step, before)


def kept(world: RolloutWorld, step: RolloutStep, before: dict[str, int]) -> None:
    """Check the promise of a step that succeeded. Other events may have happened since."""
    if step.aim is RolloutGoal.GONE:
        assert step.name not in world.places
    else:
        assert step.name in world.places
    if step.aim in (RolloutGoal.RENEWED, RolloutGoal.THERE) and world.places[step.name].state is not ChildState.ASLEEP:
        assert world.starts[step.name] > before.get(step.name, 0)
    if step.gated:
        assert (ActionKind.TRY, step.name) in world.told and world.verdicts[step.name] == ""


@settings(max_examples=examples(30, 100), deadline=None)
@given(st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True))
def test_a_rolling_restart_in_a_kind_world_is_one_at_a_time(names: list[str]) -> None:
    world = RolloutWorld(
        {name: row(name) for name in names},
        Rollout(tuple(RolloutStep(RolloutGoal.RENEWED, name) for name in names), 1, LIMITS),
    )
    while not world.change.is_over:
        world.decide()
        assert world.serving(but="") >= len(names) - 1
        for name in names:
            world.happen(name, 0 if world.places[name].state is ChildState.DRAINING else 2)
        world.now += 1.0
    assert world.change.failure is None
    verbs = [(verb, name) for verb, name in world.told if verb is not ActionKind.SAY]
    assert verbs == [(verb, name) for name in names for verb in (ActionKind.DRAIN, ActionKind.STOP, ActionKind.RENEW)]


def proxies(states: dict[str, ChildState], minimum: int = 1) -> RolloutWorld:
    """Return a world in which all proxies are to be restarted."""
    steps = tuple(RolloutStep(RolloutGoal.RELIEVED, name) for name in states)
    return RolloutWorld({name: row(name, state) for name, state in states.items()}, Rollout(steps, minimum, LIMITS))


def test_each_proxy_is_drained_ends_and_is_renewed_before_the_next() -> None:
    world = proxies({"a": ChildState.READY, "b": ChildState.READY})
    while not world.change.is_over:
        world.decide()
        for name in "ab":
            world.happen(name, 0 if world.places[name].state is ChildState.DRAINING else 2)
    verbs = [(verb, name) for verb, name in world.told if verb is not ActionKind.SAY]
    assert verbs == [(verb, name) for name in "ab" for verb in (ActionKind.DRAIN, ActionKind.RENEW)]
    assert world.change.failure is None


def test_a_proxy_that_does_not_end_is_killed_and_one_that_does_not_come_ends_the_change() -> None:
    world = proxies({"a": ChildState.READY, "b": ChildState.READY})
    world.decide()
    world.now = LIMITS.drain + PROXY_MARGIN - 0.1
    world.decide()
    assert [verb for verb, _ in world.told] == [ActionKind.DRAIN]
    world.now += 0.1
    world.decide()
    world.put("a", state=ChildState.EXITED)
    world.decide()
    assert [verb for verb, _ in world.told] == [ActionKind.DRAIN, ActionKind.KILL, ActionKind.RENEW]
    world.now += LIMITS.start - 0.1
    world.decide()
    assert world.change.failure is None
    world.now += 0.1
    world.decide()
    assert world.change.failure == "a was not ready within 20 s: see the launcher's log; b is left as before"


def test_a_proxy_waits_for_another_that_starts() -> None:
    world = proxies({"a": ChildState.READY, "b": ChildState.BACKOFF})
    world.now = LIMITS.start
    world.decide()
    world.now += LIMITS.start
    world.decide()
    assert str(world.change.failure).startswith("b did not come to serve within 20 s, so a goes on")
    assert not world.told


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from(ChildState), min_size=3), st.floats(0, 100))
def test_no_proxy_is_drained_while_another_is_to_come(states: dict[str, ChildState], now: float) -> None:
    world = proxies(states)
    world.now = now
    world.decide()
    if (ActionKind.DRAIN, "a") in world.told:
        assert all(states[name] in (ChildState.READY, ChildState.GIVEN_UP, ChildState.ASLEEP) for name in "bc")


def changing(aim: RolloutGoal, *places: WorkerSnapshot, minimum: int = 1, rests: bool = False) -> RolloutWorld:
    """Return a world with a change of the first of these workers."""
    step = RolloutStep(aim, places[0].name, rests=rests)
    return RolloutWorld({place.name: place for place in places}, Rollout((step,), minimum, LIMITS))


def test_every_phase_has_its_function() -> None:
    assert set(PHASES) == set(RolloutPhase)


def test_who_drains_works_again_when_the_other_dies_and_has_its_turn_later() -> None:
    world = changing(RolloutGoal.RENEWED, row("a"), row("b"))
    world.decide()
    world.put("b", state=ChildState.BACKOFF, exits=1)
    world.put("a", drain_state=DrainState.DRAINED, obeys=True)
    world.decide()
    assert [verb for verb, _ in world.told] == [ActionKind.DRAIN, ActionKind.ASSIGN] and world.places["a"].serves
    world.put("b", state=ChildState.READY)
    world.decide()
    assert world.told[-1] == (ActionKind.DRAIN, "a")


@pytest.mark.parametrize("aim", [RolloutGoal.RENEWED, RolloutGoal.GONE, RolloutGoal.DRAINED])
@pytest.mark.parametrize("drain_state", [DrainState.DRAINING, DrainState.DRAINED])
def test_who_was_drained_before_serves_nobody_when_others_die(aim: RolloutGoal, drain_state: DrainState) -> None:
    world = changing(aim, row("a", drain_state=drain_state), row("b"))
    world.decide()
    world.put("b", state=ChildState.BACKOFF, exits=1)
    world.decide()
    world.put("a", drain_state=DrainState.DRAINED, obeys=True)
    world.decide()
    verbs = [verb for verb, _ in world.told]
    assert verbs == [ActionKind.DRAIN, ActionKind.SAY if aim is RolloutGoal.DRAINED else ActionKind.STOP]
    assert world.change.is_over == (aim is RolloutGoal.DRAINED) and not world.change.failure


def test_who_was_drained_before_and_does_not_in_time_is_not_put_into_service() -> None:
    world = changing(RolloutGoal.DRAINED, row("a", drain_state=DrainState.DRAINING), row("b"))
    world.decide()
    world.now += LIMITS.drain + DRAIN_MARGIN
    world.decide()
    assert world.change.failure == "a has not drained in time" and not world.places["a"].serves


def test_others_that_keep_dying_end_the_change_with_the_worker_at_work() -> None:
    world = changing(RolloutGoal.DRAINED, row("a"), row("b"))
    for _ in range(MOST_RETREATS + 1):
        world.put("b", state=ChildState.READY)
        world.decide()
        world.put("b", state=ChildState.BACKOFF)
        world.decide()
    assert world.change.failure == "the other workers keep dying, so a goes on" and world.places["a"].serves


@pytest.mark.parametrize(
    ("aim", "verb"),
    [
        (RolloutGoal.RENEWED, ActionKind.STOP),
        (RolloutGoal.GONE, ActionKind.STOP),
        (RolloutGoal.DRAINED, ActionKind.ASSIGN),
    ],
)
def test_who_does_not_drain_in_time_is_ended_or_works_again(aim: RolloutGoal, verb: ActionKind) -> None:
    world = changing(aim, row("a"), row("b"))
    world.decide()
    world.now += LIMITS.drain + DRAIN_MARGIN - 0.1
    world.decide()
    assert [verb for verb, _ in world.told] == [ActionKind.DRAIN]
    world.now += 0.1
    world.decide()
    assert world.told[-1] == (verb, "a")


def test_the_only_worker_is_taken_away_only_by_force() -> None:
    for minimum, first in ((1, None), (0, ActionKind.DRAIN)):
        world = changing(RolloutGoal.RENEWED, row("a"), row("b", drain_state=DrainState.DRAINED), minimum=minimum)
        world.decide()
        assert [verb for verb, _ in world.told] == ([first] if first else [])
        assert (world.change.failure is None) == (minimum == 0)


def test_a_dead_worker_is_restarted_without_any_wait() -> None:
    world = changing(RolloutGoal.RENEWED, row("a", ChildState.GIVEN_UP), row("b", ChildState.STARTING))
    world.decide()
    assert [verb for verb, _ in world.told] == [ActionKind.STOP, ActionKind.RENEW]


def test_a_new_worker_that_does_not_come_up_leaves_no_trace() -> None:
    world = RolloutWorld(
        {"a": row("a")}, Rollout((RolloutStep(RolloutGoal.THERE, "b"), RolloutStep(RolloutGoal.THERE, "c")), 1, LIMITS)
    )
    world.decide()
    world.put("b", state=ChildState.BACKOFF, exits=1)
    world.decide()
    assert set(world.places) == {"a"}
    assert world.change.failure is not None and world.change.failure.endswith("; c is left as before")


def gated(aim: RolloutGoal, verdict: str | None, *places: WorkerSnapshot, name: str = "a") -> RolloutWorld:
    """Return a world in which a worker has come so far that the verdict on it is awaited, or given."""
    verdicts = {} if verdict is None else {name: verdict}
    step = RolloutStep(aim, name, gated=True)
    world = RolloutWorld({place.name: place for place in places}, Rollout((step,), 1, LIMITS), verdicts=verdicts)
    while not world.change.is_over and (ActionKind.TRY, name) not in world.told:
        world.decide()
        world.happen(name, 0 if world.places[name].state is ChildState.DRAINING else 2)
    return world


GATED = [(RolloutGoal.RENEWED, "a"), (RolloutGoal.WORKING, "a"), (RolloutGoal.THERE, "b")]


@pytest.mark.parametrize(("aim", "name"), GATED)
@pytest.mark.parametrize("verdict", ["", "token 3 is 5"])
def test_a_gated_worker_serves_only_if_it_answers_as_recorded(aim: RolloutGoal, name: str, verdict: str) -> None:
    place = row("a", drain_state=DrainState.DRAINED if aim is RolloutGoal.WORKING else DrainState.WORKING)
    world = gated(aim, verdict, place, row("d"), name=name)
    assert ((ActionKind.ASSIGN, name) in world.told) == (not verdict) and world.places["d"].serves
    if verdict and aim is RolloutGoal.THERE:
        world.put(name, state=ChildState.EXITED)
    world.happen(name, 1 if verdict else 2)
    world.decide()
    assert world.change.is_over and (name in world.places) == (not verdict or aim is not RolloutGoal.THERE)
    assert str(world.change.failure).startswith(f"{name} is refused: {verdict}" if verdict else "None")


def test_a_gate_has_a_deadline_of_its_own_and_a_death_refuses() -> None:
    world = gated(RolloutGoal.RENEWED, None, row("a"), row("b"))
    world.now += GATE + VERDICT_MARGIN - 0.1
    world.decide()
    assert world.change.failure is None
    world.now += 0.1
    world.decide()
    assert world.change.failure == "a is refused: its trial did not end within 30 s; it stays drained"
    world = gated(RolloutGoal.RENEWED, None, row("a"), row("b"))
    world.happen("a", 0)
    world.decide()
    assert world.change.failure == "a is refused: its process ended while it was tried; it stays drained"


def test_a_worker_that_serves_is_not_tried() -> None:
    world = gated(RolloutGoal.WORKING, "", row("a"))
    assert str(world.change.failure).startswith("a serves already") and not world.told


def test_who_was_drained_is_drained_after_a_rolling_restart() -> None:
    world = changing(RolloutGoal.RENEWED, row("a", drain_state=DrainState.DRAINED), row("b"), rests=True)
    world.decide()
    world.put("a", drain_state=DrainState.DRAINED, obeys=True)
    world.decide()
    world.put("a", state=ChildState.EXITED)
    world.decide()
    world.put("a", state=ChildState.READY)
    world.decide()
    assert not world.change.is_over
    world.put("a", drain_state=DrainState.DRAINED, obeys=True)
    world.decide()
    assert world.change.is_over and world.change.failure is None
