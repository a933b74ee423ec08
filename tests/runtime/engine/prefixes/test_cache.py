# SPDX-License-Identifier: Apache-2.0
"""Computed prefixes are found again by the sequences that may find them, and no token changes."""

from itertools import product

import pytest
import torch
from effort import by_default
from tiny import Rig, build, check_free, computed_by, drain, reference, rig, sequence

from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Tile
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.prompt_keys import SaltedPrefix, UsedAdapter
from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose, Sequence, SequenceState
from pontil.runtime.models.model import Model

SAMPLED = {"temperature": 1.3, "top_p": 0.95}


def prompt(length: int, seed: int = 5) -> list[int]:
    return torch.randint(0, 97, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module", params=[torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)], ids=str)
def model(request: pytest.FixtureRequest) -> Model:
    made: Model = build(reference(), dtype=request.param)
    return made


def cold(model: Model, one: Sequence) -> list[int]:
    alone = rig(model, caching=False)
    alone.engine.add(one)
    return drain(alone.engine)[one.id]


@pytest.mark.parametrize("length", by_default({1, 16, 17, 300}, [1, 2, 15, 16, 17, 33, 300]))
def test_an_identical_second_prompt_computes_one_token(model: Model, length: int) -> None:
    expected = cold(model, sequence("a", prompt(length), 20, **SAMPLED))
    ours = rig(model)
    ours.engine.add(sequence("a", prompt(length), 20, **SAMPLED))
    assert drain(ours.engine)["a"] == expected
    again = sequence("b", prompt(length), 20, **SAMPLED)
    ours.engine.add(again)
    assert computed_by(ours.engine) == 1 + 19
    assert again.output == expected and again.history.cached == length - 1
    assert (ours.scheduler.prefix.queried, ours.scheduler.prefix.hit) == (2 * length, length - 1)
    check_free(ours)


def test_concurrent_requests_compute_a_shared_prefix_once(model: Model) -> None:
    shared = prompt(160)
    prompts = {f"n{i}": shared + prompt(5 + i, i) for i in range(32)}
    ours = rig(model, blocks=400, budget=64)
    for name, tokens in prompts.items():
        ours.engine.add(sequence(name, tokens, 1))
    assert computed_by(ours.engine) == 160 + sum(5 + i for i in range(32))
    check_free(ours)


def test_identical_prompts_at_once_compute_it_once(model: Model) -> None:
    ours = rig(model)
    for i in range(8):
        ours.engine.add(sequence(str(i), prompt(70), 1))
    assert computed_by(ours.engine) == 70 + 7


def test_others_pass_those_who_wait_for_a_prefix(model: Model) -> None:
    ours = rig(model, budget=64)
    first, second, other = (sequence(name, tokens, 5) for name, tokens in
                            (("a", prompt(200)), ("b", prompt(200)), ("c", prompt(20, 9))))  # fmt: skip
    for one in (first, second, other):
        ours.engine.add(one)
    ours.engine.step()
    assert [one.state for one in (first, second, other)] == [
        SequenceState.RUNNING,
        SequenceState.WAITING,
        SequenceState.RUNNING,
    ]


def test_whoever_waits_for_a_prefix_computes_it_when_its_owner_is_gone(model: Model) -> None:
    ours = rig(model, budget=64)
    ours.engine.add(sequence("a", prompt(200), 5))
    ours.engine.add(sequence("b", prompt(200), 5))
    ours.engine.step()
    ours.engine.end("a", FinishReason.ABORTED)
    assert computed_by(ours.engine) == 200 - 64 + 4
    check_free(ours)


@pytest.mark.parametrize(
    ("model", "length"),
    by_default(
        {(torch.float32, 16), (torch.bfloat16, 40)},
        product((torch.float32, torch.bfloat16), (15, 16, 40, 64, 111)),
    ),
    indirect=["model"],
    ids=str,
)
def test_longer_prompts_and_other_endings_give_the_tokens_of_a_cold_start(model: Model, length: int) -> None:
    ours = rig(model)
    ours.engine.add(sequence("a", prompt(64), 30))
    drain(ours.engine)
    for name, tokens in (("b", prompt(64)[:length] + prompt(50, 9)), ("c", prompt(200)), ("d", prompt(64)[:length])):
        ours.engine.add(sequence(name, tokens, 20, **SAMPLED))
        assert drain(ours.engine)[name] == cold(model, sequence(name, tokens, 20, **SAMPLED))
    check_free(ours)


def test_another_salt_finds_nothing(model: Model) -> None:
    ours = rig(model)
    for salt, cached in (("", 0), ("tenant", 0), ("tenant", 31), ("", 31)):
        one = sequence("a", prompt(32), 3)
        one.prefix.salt = salt
        ours.engine.add(one)
        drain(ours.engine)
        assert one.history.cached == cached


def test_without_caching_everything_is_computed(model: Model) -> None:
    ours = rig(model, caching=False)
    for _ in range(2):
        ours.engine.add(sequence("a", prompt(40), 1))
        assert computed_by(ours.engine) == 40
    assert not ours.pool.idle


def test_prompts_whose_logprobs_are_wanted_are_computed_whole(model: Model) -> None:
    ours = rig(model)
    ours.engine.add(sequence("a", prompt(40), 1))
    drain(ours.engine)
    ours.engine.add(sequence("b", prompt(40), 1, prompt_logprobs=1))
    assert computed_by(ours.engine) == 40


def test_what_was_used_least_recently_is_evicted_from_its_end(model: Model) -> None:
    """Three prompts fill the pool; the copy that the last hit needs evicts the end of the least recently used one."""
    ours = rig(model, blocks=10)
    for seed, cached in ((1, 0), (2, 0), (1, 47), (3, 0), (1, 47), (2, 32)):
        one = sequence("a", prompt(48, seed), 1)
        ours.engine.add(one)
        drain(ours.engine)
        assert one.history.cached == cached, seed
    check_free(ours)


@pytest.mark.parametrize("length", [10, 16, 40])
def test_the_next_turn_finds_the_answer(model: Model, length: int) -> None:  # B3
    ours = rig(model)
    first = sequence("a", prompt(length), 45, **SAMPLED)
    ours.engine.add(first)
    drain(ours.engine)
    while ours.engine.keep_answers():
        pass
    talk = first.prompt + first.output
    second = sequence("b", talk + prompt(20, 9), 20, **SAMPLED)
    ours.engine.add(second)
    assert drain(ours.engine)["b"] == cold(model, sequence("b", talk + prompt(20, 9), 20, **SAMPLED))
    assert second.history.cached == (len(talk) - 1) // 16 * 16
    check_free(ours)


def test_an_answer_that_memory_does_not_suffice_for_is_not_kept(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = rig(model)
    first = sequence("a", prompt(20), 45, **SAMPLED)
    ours.engine.add(first)
    drain(ours.engine)

    def fail(tile: Tile) -> list[Sampled]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(ours.runner, "run_tile", fail)
        assert ours.engine.keep_answers() and not ours.engine.keep_answers()
    second = sequence("b", first.prompt + first.output + [3], 20, **SAMPLED)
    ours.engine.add(second)
    assert drain(ours.engine)["b"] == cold(model, sequence("b", second.prompt, 20, **SAMPLED))
    assert second.history.cached < 20
    check_free(ours)


def test_answers_are_kept_only_while_nothing_else_is_to_be_done(model: Model) -> None:
    ours = rig(model)
    ours.engine.add(sequence("a", prompt(40), 150))
    drain(ours.engine)
    ours.engine.add(sequence("b", prompt(10, 9), 3))
    assert not ours.engine.keep_answers()
    drain(ours.engine)
    assert ours.engine.keep_answers() and ours.scheduler.answer_recompute.current is not None
    ours.engine.add(sequence("c", prompt(10, 8), 3))
    assert not ours.engine.keep_answers()
    drain(ours.engine)
    assert ours.engine.park(sequence("d", prompt(10, 7), 3)) and not ours.engine.keep_answers()
    ours.engine.end("d", FinishReason.ABORTED)
    while ours.engine.keep_answers():
        pass
    check_free(ours)


def test_answers_give_way_when_memory_is_needed(model: Model) -> None:
    ours = rig(model, blocks=10)
    ours.engine.add(sequence("a", prompt(16), 110))
    drain(ours.engine)
    assert ours.engine.keep_answers() and ours.scheduler.answer_recompute.current is not None
    ours.engine.add(sequence("b", prompt(130, 9), 10))
    ours.engine.step()
    assert ours.scheduler.answer_recompute.current is None and len(ours.scheduler.running) == 1
    drain(ours.engine)
    check_free(ours)


def test_answers_of_an_adapter_that_leaves_memory_are_not_computed(model: Model) -> None:
    """Their blocks would have keys of that adapter, and be computed without it."""
    ours = rig(model)
    for name in "abc":
        ours.engine.add(sequence(name, [*prompt(40), ord(name) - 90], 60))
    drain(ours.engine)
    kept = ours.scheduler.answer_recompute
    gone, other = SaltedPrefix(adapter=UsedAdapter("aa" * 32, 0)), SaltedPrefix()
    for one, prefix in zip(kept.waiting, (gone, gone, other), strict=True):
        one.prefix = prefix.behind(0)
    kept.admit(kept.waiting[0])
    kept.current = kept.waiting.popleft()
    kept.forget("aa" * 32)
    assert kept.current is None and [one.prefix.adapter.digest for one in kept.waiting] == [""]
    while ours.engine.keep_answers():
        pass
    check_free(ours)


def test_a_machine_that_is_never_idle_computes_an_answer_with_the_next_turn(model: Model) -> None:
    """The next turn computes the same positions as idle work would have, once, and finds all others; a turn after that
    finds them too. So load costs an answer that is never asked for again nothing."""
    ours = rig(model)
    ours.engine.add(sequence("always", prompt(10, 9), 600))
    first = sequence("a", prompt(40), 45)
    ours.engine.add(first)
    talk = list(first.prompt)
    for turn, found in (("b", 39), ("c", 39 + 45 + 20 + 1)):
        while first.finish is None:
            ours.engine.step()
        assert not ours.engine.keep_answers()
        talk = first.prompt + first.output + prompt(20, 8)
        first = sequence(turn, talk, 30)
        ours.engine.add(first)
        ours.engine.step()
        assert found // 16 * 16 <= first.history.cached <= found
    ours.engine.end("always", FinishReason.ABORTED)
    drain(ours.engine)


def test_aborted_answers_are_not_kept(model: Model) -> None:
    ours = rig(model)
    ours.engine.add(sequence("a", prompt(40), 60))
    for _ in range(40):
        ours.engine.step()
    ours.engine.end("a", FinishReason.ABORTED)
    assert not ours.scheduler.answer_recompute.has_work


def test_received_blocks_are_found_and_found_blocks_need_not_be_received(model: Model) -> None:
    """The second prompt of a conversation: only the part after the first is transferred."""
    kv_sender, kv_receiver = rig(model), rig(model)
    first, second = prompt(70), prompt(70) + prompt(40, 9)
    have = [hand_over(kv_sender, kv_receiver, tokens) for tokens in (first, second)]
    assert have == [0, 4]
    check_free(kv_receiver)
    check_free(kv_sender)


def hand_over(kv_sender: Rig, kv_receiver: Rig, tokens: list[int]) -> int:
    """Hand over one request, with the missing blocks copied by hand; return how many leading blocks needed no copy."""
    model = kv_sender.runner.model
    given, taken = (sequence("a", tokens, 12, **SAMPLED) for _ in range(2))
    given.purpose = Purpose.HANDOVER
    kv_sender.engine.add(given)
    (output,) = kv_sender.engine.step()
    assert kv_receiver.engine.park(taken)
    have = taken.computed // 16
    assert have == len(taken.blocks)
    kv_receiver.scheduler.memory.grow(taken, len(tokens))
    kv_receiver.storage.tensor[taken.blocks[have:]] = kv_sender.storage.tensor[given.blocks[have:]]
    kv_receiver.engine.promote(taken, len(tokens), [Known(0, output.ids[:1])])
    assert drain(kv_receiver.engine)["a"] == cold(model, sequence("a", tokens, 12, **SAMPLED))
    kv_sender.pool.release(given.blocks)
    return have
