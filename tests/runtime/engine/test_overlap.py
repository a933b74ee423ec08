# SPDX-License-Identifier: Apache-2.0
"""Steps that are launched before the one before is over: the same tokens, logprobs, counts and ends."""

from collections import abc
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from late_runner import make_late
from rule_guide import Rule, every_third
from tiny import VOCAB, Rig, build, check_free, name_of, reference, rig, sequence
from tiny import rig as rig_of

from pontil.runtime.engine.drafts.drafter import Draft, LookupDrafter
from pontil.runtime.engine.engine import Output, StepInFlight
from pontil.runtime.engine.runner.runner import Launched
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose, Sequence
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs
from pontil.runtime.models.model import Model
from pontil.runtime.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


def prompt(length: int, seed: int = 5) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@dataclass
class Answer:
    """All that a client would have of one choice."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    count: int = 0
    finish: FinishReason | None = None
    opens: int = 0

    def add(self, output: Output) -> None:
        assert self.finish is None and output.index == len(self.ids)
        self.ids += output.ids
        self.logprobs += output.logprobs
        self.count += output.count
        self.finish = output.finish
        self.opens += output.opens


def answers(one: Rig) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    while one.engine.has_work:
        for output in one.engine.step():
            found.setdefault(name_of(output.sequence), Answer()).add(output)
    assert sum(answer.count for answer in found.values()) == one.engine.generated
    return found


SETTINGS: list[dict[str, object]] = [
    {},
    {"temperature": 1.2, "seed": 3, "logprobs": 2},
    {"presence_penalty": 0.7, "temperature": 1.0},
    {"n": 3, "temperature": 1.5},
    {"min_tokens": 4, "temperature": 2.0},
    {"prompt_logprobs": 1},
    {"logit_bias": ((3, 5.0),), "bad_token_ids": (9,), "temperature": 1.0},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "logprobs": 1},
]
# Kinds beyond have the same settings, and a guide.
KINDS = 2 * len(SETTINGS)


def made(place: int, length: int, most: int, kind: int, stops: frozenset[int]) -> Sequence:
    params: dict[str, object] = {"max_tokens": most, "seed": place, "temperature": 0.0} | SETTINGS[kind % len(SETTINGS)]
    one = Sequence(f"s{place}", prompt(length, place), SamplingParams(**params), stops)  # type: ignore[arg-type]
    if kind >= len(SETTINGS):
        one.rules.make_guide = lambda: Rule(every_third if place % 2 else dead_end, "nothing fits")
    return one


def dead_end(output: list[int]) -> set[int]:
    return every_third(output) if len(output) < 5 else set()


REQUESTS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(0, KINDS - 1)), min_size=1, max_size=6
)


@given(
    REQUESTS, st.frozensets(st.integers(0, VOCAB - 1), max_size=12), st.sampled_from([24, 60]), st.sampled_from([8, 64])
)
@settings(max_examples=6, deadline=None)
def test_late_results_change_nothing(
    model: Model, requests: list[tuple[int, int, int]], stops: frozenset[int], blocks: int, budget: int
) -> None:
    """Few blocks, so that sequences are preempted; stops, so that rows too many are computed."""
    found = []
    for late in (False, True):
        one = rig(model, blocks=blocks, block_size=8, budget=budget)
        if late:
            make_late(one.engine)
        for place, (length, most, kind) in enumerate(requests):
            one.engine.add(made(place, length, most, kind, stops))
        found.append((answers(one), one.engine.generated, one.engine.prompt_computed))
        check_free(one)
    assert found[0] == found[1]


def test_draws_that_waited_change_nothing(model: Model) -> None:
    """All kinds together whose steps overlap, with blocks for some of them."""
    kinds = [kind for kind in range(KINDS) if "prompt_logprobs" not in SETTINGS[kind % len(SETTINGS)]]
    found = []
    for late in (False, True):
        one = rig(model, blocks=26, block_size=8)
        runner = make_late(one.engine) if late else None
        for kind in kinds:
            one.engine.add(made(kind, 9 + kind, 20, kind, frozenset({1, 60, 61})))
        found.append(answers(one))
        assert one.scheduler.preemptions and (runner is None or runner.waited > 10)
        check_free(one)
    assert found[0] == found[1]
    ends = {answer.finish for answer in found[0].values()}
    assert ends == {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR}


def test_a_sequence_whose_blocks_are_being_written_is_preempted_a_step_later(model: Model) -> None:
    found = []
    for late in (False, True):
        one = rig(model, blocks=12, block_size=8)
        runner = make_late(one.engine) if late else None
        for place in range(3):
            one.engine.add(sequence(f"s{place}", prompt(20, place), 25))
        found.append(answers(one))
        assert one.scheduler.preemptions and (runner is None or runner.referred)
        check_free(one)
    assert found[0] == found[1]


def test_parts_of_prompts_overlap_too_but_for_the_last_of_one_that_is_handed_over(model: Model) -> None:
    """Its last block is made ready for a peer, behind all that is launched."""
    one = rig_of(model, budget=8)
    make_late(one.engine)
    theirs = sequence("theirs", prompt(24), 6)
    theirs.purpose = Purpose.HANDOVER
    one.engine.add(theirs)
    seen = []
    while one.engine.has_work:
        outputs = one.engine.step()
        seen.append((theirs.computed, one.engine.in_flight is not None, len(outputs)))
    assert seen[:3] == [(8, True, 0), (16, True, 0), (24, True, 0)]
    assert seen[3:] == [(24, False, 1)] and theirs.finish is FinishReason.HANDED_OVER
    one.scheduler.memory.give_back(theirs)
    check_free(one)


def test_the_next_step_is_launched_before_the_last_one_is_known(model: Model) -> None:
    one = rig_of(model)
    runner = make_late(one.engine)
    one.engine.add(sequence("a", prompt(20), 6))
    assert one.engine.step() == [] and one.engine.in_flight is not None
    assert [len(one.engine.step()) for _ in range(6)] == [1] * 6
    assert runner.referred == 5 and not one.engine.has_work


def test_a_row_too_many_is_dropped_and_its_blocks_are_kept_until_it_is_over(model: Model) -> None:
    plain = rig_of(model)
    plain.engine.add(sequence("a", prompt(20), 6, temperature=1.0))
    (answer,) = answers(plain).values()
    one = rig_of(model, caching=False)
    make_late(one.engine)
    stopped = Sequence(
        "a", prompt(20), SamplingParams(max_tokens=6, seed=1, temperature=1.0), frozenset(answer.ids[2:3])
    )
    one.engine.add(stopped)
    for _ in range(4):
        outputs = one.engine.step()
    assert outputs[0].finish is FinishReason.STOP
    assert one.pool.available < one.pool.capacity and one.engine.has_work
    assert one.engine.step() == [] and not one.engine.has_work
    assert one.engine.generated == 3 and stopped.output == answer.ids[:3]
    check_free(one)


class CountingDrafter(LookupDrafter):
    """Guesses from repeated text, with the rooms that there were for it."""

    def __init__(self) -> None:
        self.rooms: list[int] = []
        self.told = 0

    def propose(self, sequences: abc.Sequence[Sequence], most: int, room: int) -> list[Draft]:
        self.rooms.append(room)
        assert not any(one.ahead.count for one in sequences)
        return super().propose(sequences, most, room)

    def computed(self, batch: Batch, seconds: float) -> None:
        self.told += 1


def test_without_rows_for_drafts_no_drafter_runs_and_steps_overlap(model: Model) -> None:
    """A crowd that leaves no rows in the first tile, and thins out to a few, which have drafts."""

    def crowd() -> list[Sequence]:
        return [sequence(f"s{place}", [5, 6, 7] * 4 + [place], 6 if place > 2 else 20) for place in range(36)]

    plain, drafter = rig(model), CountingDrafter()
    one = rig(model, drafts=3, drafter=drafter)
    runner = make_late(one.engine)
    for each in crowd():
        plain.engine.add(each)
    expected = answers(plain)
    for each in crowd():
        one.engine.add(each)
    first = one.scheduler.schedule
    steps = list[tuple[int, bool]]()

    def watched() -> Batch:
        batch = first()
        decoding = [span for span in batch.spans if span.start >= len(span.sequence.prompt)]
        steps.append((len(decoding), one.scheduler.drafts.asked))
        return batch

    one.scheduler.schedule = watched  # type: ignore[method-assign]
    assert answers(one) == expected
    assert all(not asked for rows, asked in steps if rows >= 32) and min(drafter.rooms) > 0
    assert runner.referred >= 36 * 3, "steps of the crowd overlap"
    assert one.engine.drafted and drafter.told == len(drafter.rooms)
    check_free(one)


def test_a_request_that_ends_in_flight_says_no_more(model: Model) -> None:
    one = rig_of(model, caching=False)
    make_late(one.engine)
    one.engine.add(sequence("a", prompt(20), 6))
    one.engine.add(sequence("b", prompt(9), 6))
    assert one.engine.step() == []
    assert [output.sequence.id for output in one.engine.step()] == ["a", "b"]
    one.engine.end("a", FinishReason.ABORTED)
    later = [output for _ in range(5) for output in one.engine.step()]
    assert [output.sequence.id for output in later] == ["b"] * 5 and one.engine.generated == 7
    check_free(one)


def test_a_step_that_was_waited_for_knows_what_it_left_out() -> None:
    """So it notes no time with a sequence of which nothing was computed."""
    ended, place = sequence("a", prompt(3)), {sequence("b", prompt(3)): 0}
    step = StepInFlight(Batch(()), Launched(list, place, frozenset({ended}), late=True), 0.0, False).waited()
    assert step.alone and (step.launched.places, step.launched.left_out) == (place, frozenset({ended}))
