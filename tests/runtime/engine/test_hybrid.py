# SPDX-License-Identifier: Apache-2.0
"""Models with recurrent layers: prefixes are found up to the last boundary, and whatever happens to a sequence, its
tokens are those of one that was computed alone."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernels
import pytest
import torch
from architectures import ROUND_SIZES, VOCAB, hugging_model, read_model
from effort import by_default
from tiny import Rig, check_free, computed_by, drain, rig, sequence

from pontil.gpu_ops.kv.states import StateSpan, TileStates
from pontil.runtime.cache.layout import KVLayout, layout_for
from pontil.runtime.cache.prefix import STATE_TOKENS
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import Purpose
from pontil.runtime.errors import ModelError
from pontil.runtime.models.families.registry import build_embedder
from pontil.runtime.models.model import Model
from pontil.runtime.models.partition import check_division, check_states
from pontil.runtime.models.weights import Weights

PROMPT = torch.randint(0, VOCAB, (600,), generator=torch.Generator().manual_seed(5)).tolist()
OTHER = PROMPT[:300] + PROMPT[:60]
COUNT = 4


@pytest.fixture(scope="module", params=by_default({"kernels"}, ["kernels", "torch"]))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path: Path = tmp_path_factory.mktemp("hybrid")
    hugging_model("qwen3_5_text", ROUND_SIZES | {"max_position_embeddings": 4096}).save_pretrained(path)
    yield read_model(path, kernels=kernels.opened() if request.param == "kernels" else None)


@pytest.fixture(scope="module")
def expected(model: Model) -> dict[str, list[int]]:
    """The tokens after some prompts, each computed alone without a cache."""
    answers: dict[str, list[int]] = {}
    for name, prompt in {"whole": PROMPT, "two": PROMPT[: 2 * STATE_TOKENS], "other": OTHER}.items():
        alone = rig(model, caching=False)
        alone.engine.add(sequence(name, prompt, COUNT))
        answers |= drain(alone.engine)
    return answers


def computed(one: Rig, name: str, prompt: list[int], expected: list[int]) -> int:
    """Compute one more prompt, whose tokens must be these; return how many of its positions were computed."""
    asked = sequence(name, prompt, COUNT)
    one.engine.add(asked)
    count = computed_by(one.engine)
    assert asked.output == expected
    check_free(one)
    return count - (COUNT - 1)


def test_prompts_go_on_from_their_last_known_boundary(model: Model, expected: dict[str, list[int]]) -> None:
    one = rig(model)
    assert computed(one, "a", PROMPT, expected["whole"]) == 600
    assert computed(one, "b", PROMPT, expected["whole"]) == 600 - 512
    assert computed(one, "c", OTHER, expected["other"]) == 360 - 256
    # All of it is known, but the state before the last position is not.
    assert computed(one, "d", PROMPT[:512], expected["two"]) == 256
    # The beginning was written again beside the known block, which nobody changed.
    assert computed(one, "e", PROMPT, expected["whole"]) == 600 - 512


def test_equal_prompts_at_once_are_computed_once(model: Model, expected: dict[str, list[int]]) -> None:
    one = rig(model)
    for number in range(3):
        one.engine.add(sequence(str(number), PROMPT, COUNT))
    assert computed_by(one.engine) == 600 + 2 * 88 + 3 * (COUNT - 1)


def test_choices_have_states_of_their_own(model: Model) -> None:
    params = {"n": 3, "temperature": 1.0, "seed": 8}
    alone, crowded = rig(model, caching=False), rig(model, budget=70)
    for one in (alone, crowded):
        one.engine.add(sequence("a", PROMPT[:250], 12, **params))
    crowded.engine.add(sequence("b", PROMPT[:80], 12))
    answers, others = drain(alone.engine), drain(crowded.engine)
    assert len({tuple(answer) for answer in answers.values()}) == 3
    assert all(others[name] == answer for name, answer in answers.items())


def test_a_preempted_sequence_is_computed_again(model: Model) -> None:
    one, alone = rig(model, blocks=4), rig(model, caching=False)
    # The newer one has the last free block before the older one needs it.
    for name, prompt in {"a": PROMPT[:246], "b": PROMPT[9:263]}.items():
        one.engine.add(sequence(name, prompt, 16))
        alone.engine.add(sequence(name, prompt, 16))
    assert drain(one.engine) == drain(alone.engine) and one.scheduler.preemptions > 0


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_handoff_brings_the_states(model: Model, expected: dict[str, list[int]], known: int) -> None:
    giver, taker = rig(model), rig(model)
    if known:
        computed(taker, "before", PROMPT[: known * STATE_TOKENS + 1], drained(model, known * STATE_TOKENS + 1))
    given, taken = sequence("a", PROMPT, COUNT), sequence("a", PROMPT, COUNT)
    given.purpose = Purpose.HANDOVER
    giver.engine.add(given)
    while not given.output:
        outputs = giver.engine.step()
    assert taker.engine.park(taken) and taken.computed == known * STATE_TOKENS
    taker.scheduler.memory.grow(taken, len(PROMPT))
    giver.storage.clear_tail(given.blocks[-1], len(PROMPT) % STATE_TOKENS)
    taker.storage.own[taken.blocks[known:]] = giver.storage.own[given.blocks[known:]]
    taker.engine.promote(taken, len(PROMPT), [Known(0, outputs[0].ids[:1])])
    assert drain(taker.engine)["a"] == expected["whole"]


def drained(model: Model, length: int) -> list[int]:
    alone = rig(model, caching=False)
    alone.engine.add(sequence("a", PROMPT[:length], COUNT))
    return drain(alone.engine)["a"]


def test_the_next_turn_finds_the_answer(model: Model) -> None:
    one, cold = rig(model), rig(model, caching=False)
    first = sequence("a", PROMPT[:240], 40, temperature=1.0)
    one.engine.add(first)
    drain(one.engine)
    while one.engine.keep_answers():
        pass
    talk = first.prompt + first.output
    turn = sequence("b", talk + PROMPT[:9], COUNT)
    one.engine.add(turn)
    cold.engine.add(sequence("b", talk + PROMPT[:9], COUNT))
    assert drain(one.engine)["b"] == drain(cold.engine)["b"]
    # Kernels have the state after the answer, at the last position that was computed.
    assert turn.history.cached == (len(talk) - 1 if one.engine.runner.answers_are_found else STATE_TOKENS)
    check_free(one)


def test_the_end_of_an_answer_is_found_by_its_very_tokens(model: Model) -> None:
    """And no state of a choice that goes on is taken for that of one that has ended."""
    if model.kernels is None:
        pytest.skip("torch computes answers again as prompts")
    one, cold = rig(model), rig(model, caching=False)
    asked = sequence("a", PROMPT[:40], 9, n=2, temperature=1.2, seed=3)
    one.engine.add(asked)
    answers = drain(one.engine)
    talks = [PROMPT[:40] + answer for answer in answers.values()]
    turns = {f"{place}": [*talk, 3, 1] for place, talk in enumerate(talks)}
    turns |= {"cut": [*talks[0][:-2], 5, 6, 7, 8], "short": talks[0][:30], "equal": talks[1]}
    cached = {}
    for name, prompt in turns.items():
        turn = sequence(name, prompt, COUNT)
        one.engine.add(turn)
        cold.engine.add(sequence(name, prompt, COUNT))
        assert drain(one.engine)[name] == drain(cold.engine)[name]
        cached[name] = turn.history.cached
    assert cached == {"0": 48, "1": 48, "cut": 40, "short": 0, "equal": 48}
    check_free(one)


def test_a_prompt_is_found_to_its_end(model: Model) -> None:
    """Its last block is copied before an answer goes on in it, unless no memory is left for that."""
    turn = [*PROMPT[:300], 3, 1]
    cold = rig(model, caching=False)
    cold.engine.add(sequence("b", turn, COUNT))
    expected = drain(cold.engine)["b"]
    for blocks, found in ((200, 300), (3, STATE_TOKENS)):
        one = rig(model, blocks=blocks)
        first = sequence("a", PROMPT[:300], COUNT)
        one.engine.add(first)
        drain(one.engine)
        assert first.output[:2] != [3, 1]
        again = sequence("b", turn, COUNT)
        one.engine.add(again)
        assert drain(one.engine)["b"] == expected and again.history.cached == found
        check_free(one)


def test_a_prompt_that_was_handed_over_is_found_to_its_end(model: Model) -> None:
    giver = rig(model)
    given = sequence("a", PROMPT[:300], COUNT)
    given.purpose = Purpose.HANDOVER
    giver.engine.add(given)
    while not given.output:
        giver.engine.step()
    giver.scheduler.memory.give_back(given)
    assert giver.pool.highest == 2
    again = sequence("b", PROMPT[:310], COUNT)
    giver.engine.add(again)
    drain(giver.engine)
    assert again.history.cached == 300


def test_a_long_prompt_is_found_from_its_last_boundary(model: Model) -> None:
    long = (PROMPT * 7)[:4000]
    one = rig(model)
    turns = [sequence("a", long, 1), sequence("b", [*long[:3990], 5], 1)]
    for turn in turns:
        one.engine.add(turn)
        drain(one.engine)
    assert [turn.history.cached for turn in turns] == [0, 4000 // STATE_TOKENS * STATE_TOKENS]
    assert turns[0].history.prompt_computed == 4000 and turns[1].history.prompt_computed == 3991 - 3840


def test_a_block_is_pages_and_states(model: Model) -> None:
    layout = layout_for(model.config, 16, "float32")
    assert (layout.block_size, layout.page_size, layout.kv_pages) == (STATE_TOKENS, 16, 16)
    assert layout.pages_of([3, 1], 260)[15:] == [3 * layout.block_pages + 15, layout.block_pages]
    storage = KVStorage(layout, 4, torch.device("cpu"))
    assert storage.states is not None
    storage.tensor[:] = 1
    storage.states[:] = 2
    storage.clear_tail(2, 33)
    pages = storage.tensor[2 * layout.block_pages : 2 * layout.block_pages + 16]
    assert bool((pages[:2] == 1).all()) and bool((pages[2, :, :, :, :1] == 1).all())
    assert not pages[2, :, :, :, 1:].any() and not pages[3:].any()
    assert bool((storage.states[2] == 2).all()) and bool((storage.tensor[3 * layout.block_pages] == 1).all())
    storage.copy([(2, 3)])
    assert torch.equal(storage.own[2], storage.own[3])
    assert storage.digests([2]) == storage.digests([3])
    storage.states[3, -1] += 1
    assert storage.digests([2]) != storage.digests([3])


def test_layouts_of_states_are_exchanged_between_equally_many_ranks() -> None:
    usual = KVLayout(256, 2, 2, 8, "float32", page_tokens=16, state_numbers=64)

    def of(**changes: Any) -> str:
        return replace(usual, **changes).fingerprint()

    assert len({of(), of(ranks=2), of(page_tokens=32), of(state_numbers=65)}) == 4
    assert of(ranks=2) == of(ranks=2, rank=1)


def test_a_run_reads_the_block_before_and_writes_its_own() -> None:
    pool = torch.arange(5 * 6, dtype=torch.float32).view(5, 6).clone()
    states = TileStates(pool, 8, [StateSpan(0, 3, [4]), StateSpan(6, 12, [1, 2, 3])])
    runs = []
    for rows, state in states.pieces(1, 3):
        runs.append((rows.start, rows.stop, state.tolist()))
        state += 100
    before = [[0.0, 0.0, 0.0], [9.0, 10.0, 11.0], [109.0, 110.0, 111.0], [209.0, 210.0, 211.0]]
    assert runs == [(0, 3, before[0]), (3, 5, before[1]), (5, 13, before[2]), (13, 15, before[3])]
    assert pool[1].tolist() == [6.0, 7.0, 8.0, 109.0, 110.0, 111.0] and pool[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_what_states_cannot_do_is_refused(model: Model) -> None:
    with pytest.raises(ModelError, match="guesses"):
        check_states(model.config, "cuda:0", guesses=True)
    check_states(model.config, "cuda:0", guesses=False)
    check_states(model.config, "cpu", guesses=True)
    with pytest.raises(ModelError, match="recurrent"):
        check_division(model.config, 6)
    with pytest.raises(ModelError, match="recurrent"):
        build_embedder(model.config, Weights([], torch.device("cpu"), torch.float32))
