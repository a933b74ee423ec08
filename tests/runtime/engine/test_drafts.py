# SPDX-License-Identifier: Apache-2.0
"""Drafts change only the number of steps of an answer: no token, logprob, end or count."""

from functools import partial
from itertools import product
from typing import Any

import pytest
from drafted import REPEATING, Plain, Stops, plain_of, requests, run
from effort import by_default, examples, is_long
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import build, check_free, drain, reference, rig, sequence

from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.draft_state import LONGEST, PromptLookup
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose, Sequence
from pontil.runtime.engine.sequences.token_rules import SequenceStops
from pontil.runtime.models.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


@pytest.fixture(scope="module")
def plain(model: Model) -> Plain:
    return plain_of(model)


@pytest.mark.parametrize(("drafts", "first"), by_default({(4, 1), (16, 2)}, [(1, 0), (4, 1), (16, 2)]))
def test_alone_and_in_a_crowd_the_answers_are_those_without_drafts(
    model: Model, plain: Plain, drafts: int, first: int
) -> None:  # B1, C16
    """Each kind of request in a crowd and alone; without `--long` one third of them alone with each of two numbers."""
    expected = plain(40)
    crowd = rig(model, drafts=drafts)
    assert run(crowd, requests()) == expected
    assert crowd.engine.drafted >= crowd.engine.accepted > 10
    for each in requests() if is_long() else requests()[first::3]:
        alone = rig(model, drafts=drafts)
        found = run(alone, [each])
        assert found == {name: one for name, one in expected.items() if name in found}


def test_replay_after_preemption_gives_the_same(model: Model, plain: Plain) -> None:
    expected = plain(60)
    tight = rig(model, blocks=16, drafts=5)
    assert run(tight, requests(60)) == expected
    assert tight.scheduler.preemptions > 0 and tight.engine.accepted > 0
    counted = sum(len(one.ids) for one in expected.values())
    assert tight.engine.generated == counted


@pytest.mark.parametrize("budget", by_default({1, 7, 13}, [1, 2, 6, 7, 8, 13]))
def test_the_budget_ends_an_answer_inside_a_draft(model: Model, budget: int) -> None:
    drafting = rig(model, drafts=6)
    found = run(drafting, requests(budget))
    assert found == run(rig(model), requests(budget))
    assert all(len(one.ids) == budget and one.finish is FinishReason.LENGTH for one in found.values())


def test_an_end_inside_an_accepted_draft_is_the_end(model: Model) -> None:
    """Accepted tokens behind the end are no part of the answer, and in no count except the rejected drafts."""
    (full,) = run(rig(model), [sequence("a", REPEATING, 40)]).values()
    cut = 0
    for at in range(2, 30, examples(5, 1)):
        stop, text = full.ids[at], tuple(full.ids[at - 1 : at + 1])
        plain, drafting = rig(model), rig(model, drafts=8)
        for one in (plain, drafting):
            by_id = sequence("id", REPEATING, 40)
            by_id.stop_token_ids = frozenset({stop})
            by_text = sequence("text", REPEATING, 40)
            by_text.rules.stops = SequenceStops(partial(Stops, text))
            found = run(one, [by_id, by_text])
            assert found["id"].ids == full.ids[: full.ids.index(stop) + 1] and found["id"].finish is FinishReason.STOP
            assert found["text"].finish is FinishReason.STOP and tuple(found["text"].ids[-2:]) == text
        cut += drafting.engine.accepted > 0
    assert cut, "some draft was accepted up to the end"


@pytest.mark.parametrize(
    ("length", "drafts"),
    by_default({(15, 16), (16, 1), (16, 16), (17, 16)}, product((1, 15, 16, 17, 31, 32), (1, 15, 16))),
)
def test_slots_for_all_drafts_are_there_before_anything_is_written(
    model: Model, length: int, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # C10
    one = rig(model, drafts=drafts)
    run_batch, widest = one.runner.run, 0

    def watched(batch: Batch) -> list[Sampled]:
        nonlocal widest
        for span in batch.spans:
            blocks = span.sequence.blocks[: one.scheduler.memory.layout.blocks_for(span.start + span.count)]
            assert len(blocks) * 16 >= span.start + span.count
            assert all(one.pool.owners[block] == 1 for block in blocks[span.start // 16 :])
            assert span.count <= 1 + drafts or not span.drafts
            widest = max(widest, len(span.drafts))
        return run_batch(batch)

    monkeypatch.setattr(one.runner, "run", watched)
    prompt = REPEATING[:length]
    assert run(one, [sequence("a", prompt, 40)]) == run(rig(model), [sequence("a", prompt, 40)])
    assert widest == drafts


def test_a_pool_of_just_the_answer_is_enough(model: Model) -> None:
    """Drafts never ask for more blocks than the answer itself will."""
    tight = rig(model, blocks=1 + 3, drafts=16)
    assert run(tight, [sequence("a", REPEATING[:20], 28)]) == run(rig(model), [sequence("a", REPEATING[:20], 28)])
    assert tight.scheduler.preemptions == 0


def test_a_handed_draft_is_verified_like_any_other(model: Model) -> None:  # B7
    """Another worker's guess, right or wrong."""
    (full,) = run(rig(model), [sequence("a", REPEATING, 30)]).values()
    kv_sender = rig(model)
    given = sequence("a", REPEATING, 30)
    given.purpose = Purpose.HANDOVER
    kv_sender.engine.add(given)
    kv_sender.engine.step()
    for draft, right in ((full.ids[1:5], 4), (full.ids[1:20], 4), ((full.ids[1], 90, 90), 1), ((96,) * 40, 0)):
        one = rig(model, drafts=4)
        taken = sequence("a", REPEATING, 30)
        assert one.engine.park(taken)
        one.scheduler.memory.grow(taken, len(REPEATING))
        one.storage.tensor[taken.blocks] = kv_sender.storage.tensor[given.blocks]
        one.engine.promote(taken, len(REPEATING), [Known(0, full.ids[:1], draft=tuple(draft))])
        (output,) = one.engine.step()
        assert (output.index, output.ids) == (0, full.ids[: right + 2])
        assert (output.drafted, output.accepted) == (min(4, len(draft)), right)
        assert drain(one.engine) == {"a": full.ids}
        check_free(one)


@st.composite
def some_requests(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A few requests over few tokens, so that much is repeated; most of the random guesses are wrong."""
    kinds = st.fixed_dictionaries(
        {"prompt": st.lists(st.integers(3, 6), min_size=1, max_size=40), "max_tokens": st.integers(1, 30)},
        optional={
            "temperature": st.sampled_from([0.3, 1.0]), "min_tokens": st.integers(0, 9), "n": st.integers(1, 3),
            "logprobs": st.integers(0, 2), "presence_penalty": st.sampled_from([-1.0, 1.0]),
            "stop": st.sampled_from([3, 4]),
        },
    )  # fmt: skip
    return draw(st.lists(kinds, min_size=1, max_size=5))


@settings(max_examples=examples(5, 50), deadline=None)
@given(some_requests(), st.integers(1, 16), st.integers(9, 40))
def test_whatever_is_asked_drafts_change_nothing(
    model: Model, asked: list[dict[str, Any]], drafts: int, blocks: int
) -> None:
    def made() -> list[Sequence]:
        sequences = []
        for number, kind in enumerate(asked):
            kind = {"allowed_token_ids": (3, 4, 5, 6), "seed": number, **kind}
            prompt, stop = kind.pop("prompt"), kind.pop("stop", None)
            sequences.append(sequence(str(number), prompt, **kind))
            sequences[-1].stop_token_ids = frozenset() if stop is None else frozenset({stop})
        return sequences

    guessing = rig(model, blocks=blocks, drafts=drafts)
    assert run(guessing, made()) == run(rig(model), made())


@settings(max_examples=examples(40, 200), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 40))
def test_a_draft_is_what_followed_last_time(tokens: list[int], count: int, cut: int) -> None:
    """A draft depends on the tokens alone, not on the pieces in which they came."""
    at_once, bit_by_bit = PromptLookup(), PromptLookup()
    prompt, output = tokens[:cut], tokens[cut:]
    at_once.follow(tokens, [])
    for end in range(len(output) + 1):
        bit_by_bit.follow(prompt, output[:end])
    draft = at_once.propose(count)
    assert draft == bit_by_bit.propose(count)
    for length in range(min(LONGEST, len(tokens) - 1), 0, -1):
        places = [at for at in range(length, len(tokens)) if tokens[at - length : at] == tokens[-length:]]
        if places:
            followed = tokens[places[-1] :]
            assert draft == tuple((followed * count)[:count])
            return
    assert draft == ()


def test_rows_left_in_a_tile_are_all_that_drafts_take(model: Model) -> None:
    one = rig(model, drafts=16)
    widths: list[int] = []
    run_batch = one.runner.run

    def watched(batch: Batch) -> list[Sampled]:
        widths.append(sum(tile.rows for tile in batch.tiles() if tile.generated))
        return run_batch(batch)

    one.runner.run = watched  # type: ignore[method-assign]
    run(one, [sequence(str(number), REPEATING[: 6 + number % 20], 30) for number in range(20)])
    assert max(widths) == 32
    widths.clear()
    run(one, [sequence(str(number), REPEATING[: 6 + number % 20], 30) for number in range(36)])
    assert max(widths) == 36, "and none where it is full without them"
