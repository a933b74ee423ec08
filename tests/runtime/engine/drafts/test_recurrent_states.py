# SPDX-License-Identifier: Apache-2.0
"""Drafts for models with recurrent layers: whichever guesses are right, the states behind an answer have the bits that
they have without guesses, and so have the blocks that others find."""

import random
from collections import abc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kernels
import pytest
import torch
from architectures import HYBRIDS, ROUND_SIZES, VOCAB, hugging_model, read_model
from drafted import Always, Oracle, Stops
from effort import by_default, examples
from tiny import Rig, check_free, name_of, rig, sequence

from pontil.gpu_ops.kv.states import StateSpan, TileStates
from pontil.runtime.cache.prefix import STATE_TOKENS
from pontil.runtime.engine.drafts.drafter import LookupDrafter
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
from pontil.runtime.engine.sequences.token_rules import SequenceStops
from pontil.runtime.models.model import Model

TEXT = torch.randint(0, VOCAB, (600,), generator=torch.Generator().manual_seed(5)).tolist()
MOST = 7
# Names, lengths of prompts that end around a boundary, tokens, and parameters.
Asked = tuple[tuple[str, int, int, dict[str, Any]], ...]
ASKED: Asked = (
    ("before", STATE_TOKENS - 8, 30, {}),
    ("at", STATE_TOKENS, 20, {"temperature": 0.8}),
    ("behind", 2 * STATE_TOKENS - 1, 20, {"temperature": 0.5, "logprobs": 2}),
    ("choices", STATE_TOKENS - 3, 12, {"temperature": 1.0, "n": 2}),
    ("short", 9, 40, {}),
)
CASES = [f"{name} by kernels" for name in HYBRIDS] + [*HYBRIDS]
USUAL = {"qwen3_5_text by kernels", "granitemoehybrid by kernels", "bamba"}

# Left behind by an answer: the bytes of its full blocks, and the states of its last one.
Behind = tuple[list[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module", params=by_default(USUAL, CASES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path: Path = tmp_path_factory.mktemp("hybrid")
    name, by, _ = request.param.partition(" by ")
    hugging_model(name, ROUND_SIZES | {"max_position_embeddings": 4096}).save_pretrained(path)
    yield read_model(path, kernels=kernels.opened() if by else None)


def asked(which: abc.Sequence[tuple[str, int, int, dict[str, Any]]]) -> list[Sequence]:
    return [sequence(name, TEXT[:length], count, seed=3, **params) for name, length, count, params in which]


def askable(model: Model) -> Asked:
    """The sizes of a question: torch takes a second for a few hundred positions."""
    return ASKED if model.kernels else ASKED[:4:3]


def by_name(answers: dict[str, list[int]]) -> Callable[[Sequence], list[int]]:
    return lambda one: answers[name_of(one)]


def answered(one: Rig, sequences: abc.Sequence[Sequence]) -> tuple[dict[str, list[int]], dict[str, Behind]]:
    """Answer these together; return the tokens, and what is behind each when it ends."""
    outputs, behind = dict[str, list[int]](), dict[str, Behind]()
    give_back = one.scheduler.memory.give_back

    def look(ended: Sequence) -> None:
        if ended.finish is not None:
            assert ended.computed == ended.length - 1 and one.storage.states is not None
            full, last = ended.computed // STATE_TOKENS, ended.blocks[(ended.computed - 1) // STATE_TOKENS]
            blocks = [one.storage.own[block].clone() for block in ended.blocks[:full]]
            behind[name_of(ended)] = blocks, one.storage.states[last].clone()
            outputs[name_of(ended)] = list(ended.output)
        give_back(ended)

    one.scheduler.memory.give_back = look  # type: ignore[method-assign, assignment]
    for each in sequences:
        one.engine.add(each)
    while one.engine.has_work:
        one.engine.step()
    check_free(one)
    return outputs, behind


def same(some: dict[str, Behind], others: dict[str, Behind]) -> bool:
    return some.keys() == others.keys() and all(
        all(map(torch.equal, some[name][0], blocks)) and torch.equal(some[name][1], states)
        for name, (blocks, states) in others.items()
    )


def test_any_guesses_leave_the_states_of_none(model: Model) -> None:  # B1, C16
    """In company, in any pattern of right guesses, at boundaries of blocks as within them."""
    which = askable(model)
    plain, expected = answered(rig(model), asked(which))
    assert len(plain) == len(which) + 1
    rejected = 0
    for number in range(examples(10, 3) if model.kernels else 1):
        chance = random.Random(number)
        one = rig(model, drafts=MOST, drafter=Oracle(chance, by_name(plain)))
        some = asked(chance.sample(which, chance.choice((1, 3, 5)) if number else len(which)))
        outputs, behind = answered(one, some)
        assert outputs == {name: plain[name] for name in outputs} and len(outputs) >= len(some)
        assert same(behind, {name: expected[name] for name in outputs})
        rejected += one.engine.drafted - one.engine.accepted
        assert one.engine.accepted > 0
    assert rejected > 0


def test_a_step_that_failed_is_not_begun_anew(model: Model) -> None:
    """Its states may have taken in rows already: the worker ends, and another one computes them again."""
    assert not rig(model).runner.may_begin_anew


def test_guesses_from_repeated_text(model: Model) -> None:
    repeating = [sequence("a", [5, 6, 7, 8, 9] * 50, 24), sequence("b", [11, 12] * 20, 24)]
    plain, expected = answered(rig(model), repeating)
    again = [sequence(one.id, one.prompt, 24) for one in repeating]
    one = rig(model, drafts=4)
    outputs, behind = answered(one, again)
    assert outputs == plain and same(behind, expected) and one.engine.drafted > 0


def test_an_end_within_right_guesses_leaves_its_own_states(model: Model) -> None:
    """Guesses behind an end are right and no part of the answer: the next turn does not find them."""
    plain, _ = answered(rig(model), asked(ASKED[:1]))
    full = plain["before"]

    def stopped() -> Sequence:
        (made,) = asked(ASKED[:1])
        made.rules.stops = SequenceStops(lambda: Stops(tuple(full[10:12])))
        return made

    cold, one = rig(model), rig(model, drafts=MOST, drafter=Always(by_name(plain)))
    outputs, expected = answered(cold, [stopped()])
    assert len(outputs["before"]) < len(full)
    found, behind = answered(one, [stopped()])
    assert found == outputs and same(behind, expected) and one.engine.accepted > 0
    turn = [*TEXT[: STATE_TOKENS - 8], *found["before"], 3, 1]
    turns = [sequence("turn", turn, 8), sequence("turn", turn, 8)]
    for each, (place, asks) in zip(turns, ((cold, False), (one, True)), strict=True):
        if asks:
            place.scheduler.drafts.drafter = LookupDrafter()
        place.engine.add(each)
        while place.engine.has_work:
            place.engine.step()
    assert turns[0].output == turns[1].output and turns[0].history.cached == turns[1].history.cached
    assert turns[1].finish is FinishReason.LENGTH


def test_a_preempted_sequence_forgets_its_guesses(model: Model) -> None:
    some: Asked = (("a", 246, 16, {}), ("b", 254, 16, {"temperature": 0.7}))
    plain, expected = answered(rig(model), asked(some))
    one = rig(model, blocks=4, drafts=MOST, drafter=Oracle(random.Random(4), by_name(plain)))
    outputs, behind = answered(one, asked(some))
    assert outputs == plain and one.scheduler.preemptions > 0
    # Torch computes again as a prompt what it had generated: other bits (decision 006).
    assert model.kernels is None or same(behind, expected)


def test_rows_that_verify_are_written_when_they_are_right() -> None:
    pool = torch.arange(5 * 6, dtype=torch.float32).view(5, 6).clone()
    before = pool.clone()
    states = TileStates(pool, 8, [StateSpan(6, 5, [1, 2], True), StateSpan(3, 1, [4]), StateSpan(8, 2, [0, 3], True)])
    rows = []
    for run, state in states.pieces(1, 3):
        rows.append((run.start, run.stop))
        state += 100
    assert rows == [(row, row + 1) for row in range(8)]
    before[4, 3:] += 100
    assert torch.equal(pool, before)
    states.take([4, 0])
    before[2, 3:] = before[1, 3:] + 400
    before[1, 3:] += 200
    assert torch.equal(pool, before)
