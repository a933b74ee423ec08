# SPDX-License-Identifier: Apache-2.0
"""Sequences alone, in a batch, cut into chunks, handed over and replayed give the same tokens (C16)."""

from collections.abc import Iterator

import pytest
import torch
from effort import examples
from tiny import VOCAB, Rig, build, drain, reference, rig, sequence

from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Tile
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose, Sequence, SequenceState
from pontil.runtime.models.model import Model
from pontil.runtime.sampling_params import SamplingParams

SAMPLED: dict[str, object] = {"temperature": 1.3, "top_p": 0.95, "top_k": 50}
EVERYTHING: dict[str, object] = SAMPLED | {
    "min_p": 0.01, "presence_penalty": 0.7, "frequency_penalty": -0.4, "repetition_penalty": 1.2, "min_tokens": 30,
    "logit_bias": ((5, 3.0), (9, -4.0)), "bad_token_ids": (7, 8), "seed": 12, "logprobs": 3,
}  # fmt: skip

SETTINGS: dict[str, dict[str, object]] = {"greedy": {}, "sampled": SAMPLED, "everything": EVERYTHING}


def prompt(length: int, seed: int = 5) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module", params=[torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)], ids=str)
def model(request: pytest.FixtureRequest) -> Model:
    made: Model = build(reference(), dtype=request.param)
    return made


def in_both(*kinds: str) -> pytest.MarkDecorator:
    """In float32 with settings of the first kind, in bfloat16 with all settings at once, and with --long the others."""
    cases = [
        pytest.param(dtype, SETTINGS[kind], id=f"{dtype}-{kind}", marks=[pytest.mark.long] if is_more else [])
        for dtype in (torch.float32, torch.bfloat16)
        for kind in kinds
        for is_more in [kind != (kinds[0] if dtype == torch.float32 else "everything")]
    ]
    return pytest.mark.parametrize(("model", "settings"), cases, indirect=["model"])


@pytest.fixture
def alone(model: Model) -> Iterator[Rig]:
    made = rig(model)
    yield made
    made.pool.check()
    assert made.pool.available == made.pool.capacity


def company(length: int) -> list[Sequence]:
    """Sequences with other parameters, to share the batch with the one under test."""
    settings: list[dict[str, object]] = [
        {},
        SAMPLED,
        EVERYTHING | {"min_tokens": 0},
        {"temperature": 0.7, "min_p": 0.1},
    ]
    return [sequence(f"n{i}", prompt(3 + 17 * i, i), 5 + i, **(settings[i % 4] | {"seed": i})) for i in range(length)]


@in_both("greedy", "sampled", "everything")
def test_company_and_chunks_change_nothing(alone: Rig, model: Model, settings: dict[str, object]) -> None:
    """One crowd for all lengths, each of which was alone before. Every answer crosses the end of a block."""
    expected: dict[str, list[int]] = {}
    tokens = examples(18, 40)
    for length in (1, 15, 16, 64, 65, 300):
        alone.engine.add(sequence(f"a{length}", prompt(length), tokens, **settings))
        expected |= drain(alone.engine)
    crowded = rig(model, blocks=600, budget=50)
    for one in company(examples(11, 20)):
        crowded.engine.add(one)
    crowded.engine.step()
    for name in expected:
        crowded.engine.add(sequence(name, prompt(int(name[1:])), tokens, **settings))
    made = drain(crowded.engine)
    assert {name: made[name] for name in expected} == expected


@pytest.mark.parametrize("block_size", [8, 32, 64])
def test_block_size_changes_nothing(alone: Rig, model: Model, block_size: int) -> None:
    alone.engine.add(sequence("a", prompt(300), 20))
    other = rig(model, blocks=80, block_size=block_size)
    other.engine.add(sequence("a", prompt(300), 20))
    assert drain(other.engine) == drain(alone.engine)


@in_both("sampled", "everything")
def test_handed_over_sequence_goes_on_with_equal_tokens(alone: Rig, model: Model, settings: dict[str, object]) -> None:
    words = prompt(70)
    alone.engine.add(sequence("a", words, 30, **settings))
    expected = drain(alone.engine)["a"]
    kv_sender, kv_receiver = rig(model), rig(model, block_size=16)
    given = sequence("a", words, 30, **settings)
    given.purpose = Purpose.HANDOVER
    kv_sender.engine.add(given)
    (output,) = kv_sender.engine.step()
    assert output.finish is FinishReason.HANDED_OVER and output.ids == expected[:1]
    taken = sequence("a", words, 30, **settings)
    assert kv_receiver.engine.park(taken)
    assert not kv_receiver.engine.has_work
    kv_receiver.scheduler.memory.grow(taken, 70)
    kv_receiver.storage.tensor[taken.blocks] = kv_sender.storage.tensor[given.blocks]
    kv_receiver.engine.promote(taken, 70, [Known(0, output.ids[:1], 0, tuple(output.logprobs))])
    (first,) = kv_receiver.engine.step()
    assert (first.index, first.ids) == (0, expected[:2])
    assert drain(kv_receiver.engine)["a"] == expected
    assert taken.record.generated == 29
    kv_sender.pool.release(given.blocks)
    assert (
        kv_sender.pool.available == kv_sender.pool.capacity and kv_receiver.pool.available == kv_receiver.pool.capacity
    )


@in_both("greedy", "everything")
def test_replayed_tokens_give_the_same_continuation(alone: Rig, model: Model, settings: dict[str, object]) -> None:
    alone.engine.add(sequence("a", prompt(70), 80, **settings))
    expected = drain(alone.engine)["a"]
    replay = sequence("a", prompt(70), 80, **settings)
    replay.output += expected[:45]
    again = rig(model, budget=33)
    again.engine.add(replay)
    drain(again.engine)
    assert replay.output == expected


def test_ends_by_stop_token_before_budget(alone: Rig) -> None:
    alone.engine.add(sequence("a", prompt(9), 12))
    tokens = drain(alone.engine)["a"]
    stop = tokens[5]
    for budget in (12, 6):  # A6: a stop exactly at the budget is a stop
        ended = Sequence("b", prompt(9), SamplingParams(budget, 1, temperature=0.0), frozenset({stop}))
        alone.engine.add(ended)
        drain(alone.engine)
        assert ended.finish is FinishReason.STOP
        assert ended.output == tokens[: tokens.index(stop) + 1]


def test_waits_for_memory_and_seats_in_order(model: Model) -> None:
    tight = rig(model, blocks=9, seats=2)
    sequences = [sequence(str(i), prompt(30, i), 30) for i in range(5)]
    for one in sequences:
        tight.engine.add(one)
    tight.engine.step()
    assert [one.state for one in sequences] == [SequenceState.RUNNING] * 2 + [SequenceState.WAITING] * 3
    assert len(drain(tight.engine)) == 5
    tight.pool.check()
    assert tight.pool.available == tight.pool.capacity
    assert not tight.scheduler.fits(sequence("x", prompt(100), 100))


def test_abort_frees_in_every_state(model: Model) -> None:
    tight = rig(model, seats=2)
    running, parked, waiting, unparked = (sequence(name, prompt(30), 30) for name in "abcd")
    tight.engine.add(running)
    tight.engine.step()
    assert tight.engine.park(parked)
    tight.engine.add(waiting)
    tight.engine.step()
    assert not tight.engine.park(unparked)
    for one in (running, parked, waiting, unparked):
        tight.engine.end(one.id, FinishReason.ABORTED)
        tight.engine.end(one.id, FinishReason.ABORTED)
        assert one.finish is FinishReason.ABORTED
    assert not tight.engine.has_work
    assert tight.pool.available == tight.pool.capacity


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()], ids=type)
def test_memory_that_runs_out_ends_the_largest_request_and_changes_no_other(
    model: Model, alone: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    settings: dict[str, object] = {"prompt_logprobs": 2, "seed": 3}
    alone.engine.add(sequence("small", prompt(20), 12, **settings))
    expected = drain(alone.engine)["small"]
    crowded = rig(model, budget=100)
    for name, length in (("small", 20), ("large", 60)):
        crowded.engine.add(sequence(name, prompt(length), 12, **settings))
    run_tile, sizes = crowded.runner.run_tile, list[int]()

    def limited(tile: Tile) -> list[Sampled]:
        made = run_tile(tile)
        sizes.append(tile.rows)
        if tile.rows > 50:
            raise error
        return made

    with monkeypatch.context() as patch:
        patch.setattr(crowded.runner, "run_tile", limited)
        outputs = crowded.engine.step()
    (failed, first) = sorted(outputs, key=lambda one: one.sequence.id)
    assert sizes[:2] == [80, 20]
    assert (failed.sequence.id, failed.finish, failed.count, failed.ids) == ("large", FinishReason.ERROR, 0, [])
    assert failed.failure is not None and "memory" in failed.failure
    assert first.sequence.id == "small" and len(first.sequence.record.prompt_logprobs) == 20
    assert drain(crowded.engine)["small"] == expected
    # Nothing of the one that failed is found: it was not computed to its end.
    for one in (alone, crowded):
        one.engine.add(sequence("again", prompt(60), 12, seed=3))
    assert drain(crowded.engine)["again"] == drain(alone.engine)["again"]
    crowded.pool.check()
    assert crowded.pool.available == crowded.pool.capacity


def test_other_errors_of_a_step_are_not_swallowed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = rig(model)
    broken.engine.add(sequence("a", prompt(20)))

    def fail(tile: Tile) -> list[Sampled]:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(broken.runner, "run_tile", fail)
    with pytest.raises(RuntimeError, match="a kernel failed"):
        broken.engine.step()
