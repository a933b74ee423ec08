# SPDX-License-Identifier: Apache-2.0
"""Preemption: when blocks run out the newest sequence gives way, the oldest never stops, and no token changes."""

import pytest
import torch
from effort import by_default, examples
from hypothesis import given, settings
from hypothesis.strategies import DrawFn, booleans, composite, integers
from tiny import build, check_free, computed_by, drain, name_of, reference, rig, sequence

from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose, Sequence, SequenceState
from pontil.runtime.models.model import Model

SAMPLED = {"temperature": 1.3, "top_p": 0.95}


def prompt(length: int, seed: int = 5) -> list[int]:
    return torch.randint(0, 97, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


def undisturbed(model: Model, sequences: list[Sequence]) -> dict[str, list[int]]:
    """Return the tokens of sequences that have room, and find nothing computed before: company does not change them, as
    test_engine.py shows."""
    roomy = rig(model, blocks=400, caching=False)
    for one in sequences:
        roomy.engine.add(one)
    made = drain(roomy.engine)
    assert not roomy.scheduler.preemptions
    return made


def crowd() -> list[Sequence]:
    return [sequence(f"n{i}", prompt(20 + i, i), 60, seed=i, **SAMPLED) for i in range(6)]


@pytest.mark.parametrize("caching", by_default({True}, [True, False]))
def test_preempted_sequences_give_the_tokens_they_would_have_given(model: Model, caching: bool) -> None:
    tight = rig(model, blocks=14, caching=caching)
    for one in crowd():
        tight.engine.add(one)
    assert drain(tight.engine) == undisturbed(model, crowd())
    assert tight.scheduler.preemptions > 0
    check_free(tight)


@pytest.mark.parametrize("caching", by_default({False}, [True, False]))
def test_a_prompt_is_computed_once_and_what_is_replayed_is_counted_apart(model: Model, caching: bool) -> None:  # A11
    tight = rig(model, blocks=14, caching=caching)
    sequences = crowd()
    for one in [*sequences, sequence("twin", prompt(20, 0), 60)]:
        tight.engine.add(one)
    sequences = [one for some in tight.engine.sequences.values() for one in some]
    computed = computed_by(tight.engine)
    assert tight.scheduler.preemptions > 0 and tight.scheduler.recomputed > 0
    assert all(one.history.cached + one.history.prompt_computed == len(one.prompt) for one in sequences)
    assert tight.engine.prompt_computed == sum(one.history.prompt_computed for one in sequences)
    once = sum(one.length - 1 - one.history.cached for one in sequences)
    assert computed == once + tight.scheduler.recomputed


def test_the_oldest_is_never_preempted_and_gets_a_token_in_every_step(model: Model) -> None:
    tight = rig(model, blocks=9)
    sequences = crowd()
    for one in sequences:
        tight.engine.add(one)
    tight.engine.step()
    while tight.engine.sequences:
        oldest = min(tight.engine.unfinished, key=lambda one: one.order)
        known = oldest.length
        tight.engine.step()
        assert oldest.length == known + 1
    assert tight.scheduler.preemptions > 0
    drain(tight.engine)
    check_free(tight)


def test_nobody_who_comes_later_is_parked_before_them(model: Model) -> None:
    """Otherwise requests from a prefill worker would take every block that becomes free."""
    tight = rig(model, blocks=14)
    for one in crowd():
        tight.engine.add(one)
    while not tight.scheduler.preemptions:
        tight.engine.step()
    late = sequence("late", prompt(5, 99), 3)
    assert tight.scheduler.waiting and not tight.engine.park(late) and not tight.pool.credits
    while tight.scheduler.waiting != [late]:
        assert late.state is SequenceState.WAITING and tight.scheduler.waiting[-1] is late
        tight.engine.step()
    while late.state is SequenceState.WAITING:
        tight.engine.step()
    tight.engine.end("late", FinishReason.ABORTED)
    drain(tight.engine)
    check_free(tight)


def test_they_come_back_in_the_order_in_which_they_came(model: Model) -> None:
    tight = rig(model, blocks=12)
    sequences = crowd()
    for one in sequences:
        tight.engine.add(one)
    finished: list[str] = []
    while tight.engine.has_work:
        finished += [output.sequence.id for output in tight.engine.step() if output.finish]
        assert [one.order for one in tight.scheduler.waiting] == sorted(one.order for one in tight.scheduler.waiting)
    assert finished == [one.id for one in sequences]


def test_prompts_that_are_handed_over_are_never_preempted(model: Model) -> None:
    """A decoding sequence that finds no block waits for those that were handed over."""
    tight = rig(model, blocks=8)
    given, own = sequence("given", prompt(60), 10), sequence("own", prompt(16, 9), 40)
    given.purpose = Purpose.HANDOVER
    tight.engine.add(own)
    tight.engine.add(given)
    outputs = tight.engine.step()
    assert {output.sequence.id for output in outputs} == {"own", "given"}
    while tight.engine.step():
        pass
    assert own.state is SequenceState.RUNNING and tight.scheduler.stalled and own.length == 49
    tight.pool.release(given.blocks)
    assert drain(tight.engine)["own"] == undisturbed(model, [sequence("own", prompt(16, 9), 40)])["own"]
    check_free(tight)


@composite
def workloads(draw: DrawFn) -> list[tuple[Sequence, int, bool]]:
    """Sequences that share prefixes, the step at which each arrives, and whether it is aborted half-way."""
    return [
        (
            sequence(
                str(number), prompt(50)[: draw(integers(0, 50))] + prompt(draw(integers(1, 30)), number),
                draw(integers(1, 30)), n=draw(integers(1, 3)), seed=number, **SAMPLED,
            ),
            draw(integers(0, 30)),
            draw(booleans()) and draw(booleans()),
        )
        for number in range(draw(integers(1, 8)))
    ]  # fmt: skip


@settings(max_examples=examples(4, 60), deadline=None)
@given(workload=workloads(), blocks=integers(9, 20), seats=integers(3, 6), budget=integers(1, 90))
def test_any_workload_ends_with_the_right_tokens_and_every_block_free(
    model: Model, workload: list[tuple[Sequence, int, bool]], blocks: int, seats: int, budget: int
) -> None:
    tight = rig(model, blocks=blocks, seats=seats, budget=budget)
    made: dict[str, list[int]] = {}
    step = 0
    while tight.engine.has_work or step <= 30:
        for one, start, aborted in workload:
            if start == step:
                tight.engine.add(one)
            if aborted and step == start + 5:
                tight.engine.end(one.id, FinishReason.ABORTED)
        for output in tight.engine.step():
            made[name_of(output.sequence)] = output.sequence.output
        tight.pool.check()
        assert not tight.scheduler.stalled or not tight.engine.has_work
        step += 1
    check_free(tight)
    fresh = [Sequence(one.id, one.prompt, one.params, frozenset()) for one, _, _ in workload]
    aborted_ones = {one.id for one, _, aborted in workload if aborted}
    for name, tokens in undisturbed(model, fresh).items():
        found = made.get(name, [])
        assert found == tokens or name.partition("/")[0] in aborted_ones and found == tokens[: len(found)]


def test_what_was_cached_is_not_counted_as_computed_after_a_preemption_before_the_first_step(model: Model) -> None:
    tight = rig(model, blocks=6)
    tight.engine.add(sequence("first", prompt(20), 4))
    drain(tight.engine)
    twin, other = sequence("twin", prompt(20), 4), sequence("other", prompt(50, 6), 24)
    tight.engine.add(twin)
    tight.scheduler.admit()
    cached = twin.history.cached
    assert tight.scheduler.preempt(twin)
    other.standing.priority = -1
    tight.engine.add(other)
    drain(tight.engine)
    assert 0 < cached == twin.history.cached and twin.history.prompt_computed == 20 - cached


def test_what_others_computed_of_a_prompt_while_it_was_preempted_is_cached(model: Model) -> None:  # A11
    """Its first admission found nothing; what another prompt computed beyond its own part it does not compute."""
    tight = rig(model, blocks=40, budget=16)
    late, other = sequence("late", prompt(50), 4), sequence("other", prompt(50), 4)
    tight.engine.add(late)
    tight.engine.step()
    assert 0 < late.history.prompt_computed < 50 and tight.scheduler.preempt(late)
    other.standing.priority = -1
    tight.engine.add(other)
    drain(tight.engine)
    found, shared = late.history, other.history
    assert found.cached == 0 < found.cached_later and found.prompt_computed + found.cached_later == 50
    assert shared.cached > 0 == shared.cached_later and shared.prompt_computed + shared.cached == 50
    assert tight.engine.prompt_computed == found.prompt_computed + shared.prompt_computed
