# SPDX-License-Identifier: Apache-2.0
"""A draft model changes only the number of steps of an answer: no token, logprob, end or count."""

import random
from collections.abc import Sequence as Sequential
from dataclasses import replace
from functools import partial

import pytest
import torch
from always_draft import AlwaysDraft
from drafted import REPEATING, Plain, Stops, plain_of, requests, run
from effort import by_default, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_guide import END, Rule, every_third
from tiny import VOCAB, Rig, build, check_free, draft_model, reference, rig, sequence

from pontil.runtime.engine.drafts.model import DraftModel
from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.engine.drafts.policy import WINDOW, DraftPlan, Option
from pontil.runtime.engine.prefixes.cache import PrefixHit
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Tile
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
from pontil.runtime.engine.sequences.token_rules import SequenceStops
from pontil.runtime.models.model import Model

# Every answer crosses the end of a block.
BUDGET = examples(20, 40)


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


@pytest.fixture(scope="module")
def plain(model: Model) -> Plain:
    return plain_of(model)


@pytest.fixture(scope="module")
def other() -> Model:
    """A model with other weights, which guesses badly."""
    made: Model = build(reference(seed=11))
    return made


def drafting(
    target: Model, draft: Model, count: int, blocks: int = 200, lookup: bool = False, draft_blocks: int = 200
) -> Rig:
    made = ModelDrafter(draft_model(draft, draft_blocks), AlwaysDraft(lookup))
    return rig(target, blocks=blocks, drafts=count, drafter=made)


def draft_of(one: Rig) -> DraftModel:
    drafter = one.scheduler.drafts.drafter
    assert isinstance(drafter, ModelDrafter)
    return drafter.model


def check_draft_free(one: Rig) -> None:
    """Check that the draft model keeps nothing of any sequence, and its pool is whole."""
    model = draft_of(one)
    model.pool.check()
    assert (
        not model.followers
        and not model.shortages
        and not model.unknown
        and model.pool.available == model.pool.capacity
    )
    check_free(one)


@pytest.mark.parametrize("count", by_default({16}, [1, 4, 16]))
def test_a_draft_of_the_model_itself_is_always_right(model: Model, plain: Plain, count: int) -> None:  # B1, C16
    """Greedy or drawn: a draft is drawn with the number of its position."""
    expected = plain(BUDGET)
    one = drafting(model, model, count)
    assert run(one, requests(BUDGET)) == expected
    assert one.engine.drafted > 50 and one.engine.accepted == one.engine.drafted
    check_draft_free(one)


def test_guesses_that_memory_does_not_suffice_for_are_left_out(
    model: Model, other: Model, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request ends for its guesses, and what was not computed is not found by the next text that begins alike."""
    expected = plain(12)
    one = drafting(model, other, 3)
    run_tile, calls = draft_of(one).runner.run_tile, list[int]()

    def limited(tile: Tile) -> list[Sampled]:
        calls.append(tile.rows)
        if len(calls) % 3 == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_tile(tile)

    monkeypatch.setattr(draft_of(one).runner, "run_tile", limited)
    assert run(one, requests(12)) == expected
    assert one.engine.drafted and len(calls) > 20
    check_draft_free(one)


@pytest.mark.parametrize("lookup", by_default({True}, [False, True]))  # with it the model guesses too
def test_a_draft_of_another_model_changes_nothing(
    model: Model, other: Model, plain: Plain, lookup: bool
) -> None:  # B1, C16
    expected = plain(BUDGET)
    one = drafting(model, other, 5, lookup=lookup)
    assert run(one, requests(BUDGET)) == expected
    assert one.engine.drafted > one.engine.accepted
    check_draft_free(one)
    for each in requests(BUDGET)[lookup :: examples(4, 2)]:
        assert run(drafting(model, other, 5, lookup=lookup), [each]).items() <= expected.items()


@pytest.mark.parametrize("right", by_default({False}, [True, False]))
def test_replay_after_preemption_gives_the_same_with_a_draft_model(
    model: Model, other: Model, plain: Plain, right: bool
) -> None:
    expected = plain(BUDGET)
    tight = drafting(model, model if right else other, 5, blocks=9)
    assert run(tight, requests(BUDGET)) == expected
    assert tight.scheduler.preemptions > 0 and tight.engine.drafted > 0
    check_draft_free(tight)


def test_without_room_for_the_draft_models_blocks_it_guesses_less(model: Model, plain: Plain) -> None:
    expected = plain(BUDGET)
    tight = drafting(model, model, 5, draft_blocks=9)
    assert run(tight, requests(BUDGET)) == expected
    assert tight.engine.drafted > 0
    check_draft_free(tight)


@pytest.mark.parametrize("budget", by_default({1, 7}, [1, 2, 6, 7, 8]))
def test_the_budget_ends_an_answer_inside_a_models_draft(model: Model, plain: Plain, budget: int) -> None:
    one = drafting(model, model, 6)
    found = run(one, requests(budget))
    assert found == plain(budget)
    assert all(len(each.ids) == budget and each.finish is FinishReason.LENGTH for each in found.values())


def test_an_end_inside_a_models_draft_is_the_end(model: Model) -> None:
    (full,) = run(rig(model), [sequence("a", REPEATING, 40)]).values()
    for at in (3, 11, 20):
        text = tuple(full.ids[at - 1 : at + 1])
        by_id, by_text = sequence("id", REPEATING, 40), sequence("text", REPEATING, 40)
        by_id.stop_token_ids = frozenset({full.ids[at]})
        by_text.rules.stops = SequenceStops(partial(Stops, text))
        found = run(drafting(model, model, 8), [by_id, by_text])
        assert found["id"].ids == full.ids[: full.ids.index(full.ids[at]) + 1]
        assert found["text"].finish is FinishReason.STOP and tuple(found["text"].ids[-2:]) == text


def test_a_prompt_is_read_once_and_found_again(model: Model) -> None:
    """The draft model has a prefix cache of its own: of an equal prompt, and of the next turn, it computes the rest."""
    one = drafting(model, model, 4)
    draft = draft_of(one)
    prompt = [3 + at % 90 for at in range(70)]
    answer = run(one, [sequence("a", prompt, 30)])["a"].ids
    assert sum(rows for rows, _ in taken(one, lambda: run(one, [sequence("b", prompt, 30)]))) < 70
    again = prompt + answer + [5, 6, 7]
    assert sum(rows for rows, _ in taken(one, lambda: run(one, [sequence("c", again, 30)]))) < 70
    assert not draft.followers


def taken(one: Rig, act: object) -> list[tuple[int, float]]:
    """Return the runs of the draft model while something is done."""
    draft, drafter, runs = draft_of(one), one.scheduler.drafts.drafter, list[tuple[int, float]]()
    assert isinstance(drafter, ModelDrafter) and callable(act)
    drafter.policy.drafted = lambda rows, seconds: runs.append((rows, seconds))  # type: ignore[method-assign]
    act()
    assert not draft.runs
    return runs


def test_of_a_long_text_only_the_end_is_read(model: Model) -> None:
    one = drafting(model, model, 4)
    prompt = [3 + at * 7 % 90 for at in range(3 * WINDOW)]
    runs = taken(one, lambda: run(one, [sequence("a", prompt, 30, temperature=0.5)]))
    assert runs[0][0] == WINDOW and max(rows for rows, _ in runs[1:]) <= 6
    check_draft_free(one)


@pytest.mark.long
def test_a_text_that_was_not_followed_is_joined_inside_the_answer(model: Model) -> None:
    """A sequence that decoded for long without guesses: what the model lacks is again the last WINDOW tokens at most,
    and positions are counted from the beginning of the text."""
    one = drafting(model, model, 0)
    made, again = (sequence("a", REPEATING, WINDOW + 50, temperature=0.6, seed=3) for _ in range(2))
    plain = run(rig(model), [again])["a"]
    one.engine.add(made)
    while len(made.output) < WINDOW + 10:
        one.engine.step()
    one.scheduler.drafts.most = 4
    while one.engine.has_work:
        one.engine.step()
    assert made.output == plain.ids and one.engine.drafted > 20
    check_draft_free(one)


def test_ids_that_the_draft_model_lacks_are_not_given_to_it(model: Model) -> None:
    draft = draft_model(model, vocab_size=VOCAB + 5)
    one = rig(model, drafts=4, drafter=ModelDrafter(draft, AlwaysDraft()))
    known, unknown = sequence("a", [5, 6, 7], 9), sequence("b", [5, VOCAB + 1], 9)
    for each in (known, unknown):
        each.output = [5]
    assert draft.missing(known) == 4 and draft.missing(unknown) is None
    odd = sequence("c", [5, 6], 9, allowed_token_ids=(5, VOCAB + 2))
    odd.output = [5]
    assert draft.missing(odd) is None
    draft.forget(known)
    run(one, [sequence("d", REPEATING, 20)])
    assert one.engine.accepted > 0
    smaller = draft_model(model, vocab_size=30)
    (guesses,) = smaller.propose([(known, 8)])
    assert all(token < 30 for token in guesses)


class Reads(AlwaysDraft):
    """A policy that has texts read in pieces before it has anything guessed."""

    def plan(self, options: Sequential[Option], room: int) -> DraftPlan:
        plan = super().plan(options, room)
        for place, one in enumerate(options):
            if one.missing is not None and one.missing > 3:
                plan.reads[place], plan.models[place] = min(7, one.missing - 1), 0
        return plan


def test_a_text_may_be_read_in_pieces(model: Model) -> None:
    draft = draft_model(model)
    one = rig(model, drafts=4, drafter=ModelDrafter(draft, Reads()))
    expected = run(rig(model), [sequence("a", REPEATING, 40)])
    assert run(one, [sequence("a", REPEATING, 40)]) == expected
    assert one.engine.accepted == one.engine.drafted > 5
    check_draft_free(one)


def test_a_text_may_be_followed_from_fewer_of_its_last_tokens(model: Model) -> None:
    draft = draft_model(model)
    one = sequence("a", [3 + at * 7 % 90 for at in range(60)], 20, temperature=0.7)
    one.output = [5, 6]
    assert draft.missing(one) == 62
    draft.narrow(one, 16)
    assert draft.missing(one) == 16 and draft.read(one, 15) == 15 and draft.missing(one) == 1
    draft.narrow(one, 16)
    assert draft.missing(one) == 1, "what is read already stays"
    draft.forget(one)
    assert not draft.followers


def test_a_handed_draft_stands_in_for_repeated_text(model: Model, other: Model) -> None:
    (full,) = run(rig(model), [sequence("a", REPEATING, 30)]).values()
    one = drafting(model, other, 4, lookup=True)
    made = sequence("a", REPEATING, 30)
    made.output, made.drafting.handed = full.ids[:1], tuple(full.ids[1:4])
    (draft,) = one.scheduler.drafts.drafter.propose([made], 4, 30)
    assert draft == tuple(full.ids[1:4])
    one.scheduler.drafts.drafter.forget(made)


def test_a_penalized_request_has_no_guesses(model: Model) -> None:
    one = drafting(model, model, 4)
    asked = sequence("a", REPEATING, 20, frequency_penalty=0.5)
    asked.params = replace(asked.params, repetition_penalty=1.2)
    run(one, [asked])
    assert one.engine.drafted == 0 and not draft_of(one).followers


def test_a_guided_answer_is_guessed_within_its_grammar(model: Model, other: Model) -> None:
    def asked() -> list[Sequence]:
        made = [sequence(f"n{number}", REPEATING, 24, seed=number, temperature=0.9 * number) for number in range(3)]
        for each in made:
            each.rules.make_guide, each.stop_token_ids = (lambda: Rule(every_third)), frozenset({END})
        return made

    expected, drafted = run(rig(model), asked()), list[int]()
    for right in (True, False):
        one = drafting(model, model if right else other, 5)
        assert run(one, asked()) == expected
        assert one.engine.drafted > 20 and (one.engine.accepted == one.engine.drafted) == right
        check_draft_free(one)
        drafted.append(one.engine.drafted)
    # With another number of logits the masks do not fit: guesses are cut at the first that the grammar forbids.
    unmasked = rig(model, drafts=5, drafter=ModelDrafter(draft_model(model, vocab_size=VOCAB - 1), AlwaysDraft()))
    assert run(unmasked, asked()) == expected
    assert unmasked.engine.drafted < min(drafted)


class AnyPlan(AlwaysDraft):
    """A policy that makes any plan that is possible, drawn at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def plan(self, options: Sequential[Option], room: int) -> DraftPlan:
        plan = DraftPlan.empty(len(options))
        for place, one in enumerate(options):
            kind = self.chance.choice(("none", "lookup", "model", "model", "read"))
            if kind == "lookup":
                plan.lookups[place] = self.chance.randint(0, min(one.found, room))
            elif kind == "model" and one.missing is not None:
                plan.models[place] = self.chance.randint(0, min(one.limit, room))
            elif kind == "read" and one.missing is not None:
                window = self.chance.randint(1, one.missing)
                plan.reads[place] = self.chance.randint(0, window - 1)
                plan.windows[place] = window if window < one.missing else 0
            room -= max(plan.lookups[place], plan.models[place])
        return plan


@settings(max_examples=examples(2, 40), deadline=None)
@given(st.integers(0, 999), st.integers(9, 40), st.integers(9, 40), st.booleans())
def test_whatever_is_planned_nothing_changes(
    model: Model, other: Model, seed: int, blocks: int, draft_blocks: int, own: bool
) -> None:
    """Pools are small, some requests are aborted, and their blocks come back."""
    chance = random.Random(seed)

    kinds: list[dict[str, float]] = [{}, {"temperature": 0.8}, {"temperature": 0.5, "n": 2}, {"logprobs": 1}]

    def asked() -> list[Sequence]:
        return [
            sequence(f"n{number}", REPEATING[: 3 + 5 * number], 20 + number, seed=number, **kind)
            for number, kind in enumerate(kinds)
        ]

    drafter = ModelDrafter(draft_model(model if own else other, draft_blocks), AnyPlan(seed))
    one = rig(model, blocks=blocks, drafts=6, drafter=drafter)
    expected = run(rig(model), asked())
    assert run(one, asked()) == expected
    for each in asked():
        one.engine.add(each)
    for _ in range(chance.randrange(12)):
        one.engine.step()
    for name in list(one.engine.sequences):
        one.engine.end(name, FinishReason.ABORTED)
    check_draft_free(one)


def test_a_text_without_room_is_not_read_again_in_every_step(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again when blocks have come back."""
    one = drafting(model, model, 3, draft_blocks=6)
    tried: list[str] = []
    begin = DraftModel.begin

    def watched(self: DraftModel, sequence: Sequence, window: int) -> tuple[Sequence, PrefixHit]:
        tried.append(sequence.id)
        return begin(self, sequence, window)

    monkeypatch.setattr(DraftModel, "begin", watched)
    one.engine.add(sequence("fits", REPEATING[:40], 30))
    one.engine.add(sequence("waits", [9, *REPEATING[:39]], 60))
    while any(each.id == "fits" for each in one.scheduler.running) or not tried:
        one.engine.step()
    assert tried.count("waits") <= 2
    while one.engine.has_work:
        one.engine.step()
    check_draft_free(one)
