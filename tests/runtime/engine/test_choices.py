# SPDX-License-Identifier: Apache-2.0
"""Several choices of one request: one prompt, one set of logits for the first tokens, blocks shared until written."""

from itertools import product

import pytest
from effort import by_default
from tiny import Rig, build, check_free, computed_by, drain, name_of, reference, rig, sequence

from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose
from pontil.runtime.models.model import Model

SAMPLED = {"temperature": 1.3, "top_p": 0.95, "seed": 11}
LENGTHS = [1, 15, 16, 17, 64]


def prompt(length: int) -> list[int]:
    return [(7 * i * i + 3 * i) % 97 for i in range(length)]


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


def each_alone(model: Model, length: int, n: int, tokens: int) -> dict[str, list[int]]:
    """Run every choice as a sequence that never forked."""
    made: dict[str, list[int]] = {}
    for choice in range(n):
        one = sequence("a", prompt(length), tokens, n=n, **SAMPLED)
        one.branch.forked, one.branch.choice = True, choice
        single = rig(model)
        single.engine.add(one)
        made |= drain(single.engine)
    return made


@pytest.mark.parametrize("length", by_default({16, 17}, LENGTHS))
def test_choices_are_what_each_would_be_alone(model: Model, length: int) -> None:
    ours = rig(model)
    ours.engine.add(sequence("a", prompt(length), 20, n=5, **SAMPLED))
    expected = each_alone(model, length, 5, 20)
    assert drain(ours.engine) == expected
    assert len({tuple(tokens) for tokens in expected.values()}) > 1
    check_free(ours)


def test_the_prompt_is_computed_once_and_its_blocks_are_shared(model: Model) -> None:
    ours = rig(model)
    ours.engine.add(sequence("a", prompt(40), 20, n=4, **SAMPLED))
    ours.engine.step()
    assert len(ours.pool.owners) == 3 and set(ours.pool.owners.values()) == {4}
    ours.engine.step()
    assert sorted(ours.pool.owners.values()) == [1, 1, 1, 1, 4, 4]
    assert 40 + computed_by(ours.engine) + 4 == 40 + 4 * 19
    check_free(ours)


def test_choices_without_a_seat_wait_with_their_blocks_and_say_the_same(model: Model) -> None:
    ours = rig(model, seats=5)
    first, second = (sequence(name, prompt(20 + i), 9, n=3, **SAMPLED) for i, name in enumerate("ab"))
    ours.engine.add(first)
    ours.engine.add(second)
    ours.engine.step()
    ours.engine.step()
    assert len(ours.scheduler.running) == 5 and len(ours.scheduler.queues.paused) == 1
    alone = rig(model)
    alone.engine.add(sequence("a", prompt(20), 9, n=3, **SAMPLED))
    said = drain(ours.engine)
    assert len(said) == 6 and drain(alone.engine).items() <= said.items()
    assert ours.scheduler.preemptions == 0
    assert not ours.scheduler.fits(sequence("c", prompt(5), 9, n=6))
    check_free(ours)


def test_a_choice_that_ends_at_once_leaves_the_others_their_blocks(model: Model) -> None:
    expected = each_alone(model, 33, 4, 12)
    stop = expected["a/0"][0]
    ours = rig(model)
    one = sequence("a", prompt(33), 12, n=4, **SAMPLED)
    one.stop_token_ids = frozenset({stop})
    ours.engine.add(one)
    until = {name: tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for name, tokens in expected.items()}
    assert drain(ours.engine) == until
    assert len(until["a/0"]) == 1 < max(map(len, until.values()))
    check_free(ours)


def hand_over(model: Model, length: int, n: int) -> tuple[Rig, list[Known], list[int]]:
    """A prefill engine that has finished a request: its first tokens, and the blocks it holds."""
    kv_sender = rig(model)
    given = sequence("a", prompt(length), 12, n=n, **SAMPLED)
    given.purpose = Purpose.HANDOVER
    kv_sender.engine.add(given)
    outputs = kv_sender.engine.step()
    assert [output.finish for output in outputs] == [FinishReason.HANDED_OVER] * n
    for output in outputs[1:]:
        assert output.sequence.blocks == given.blocks
        kv_sender.scheduler.memory.give_back(output.sequence)
    return kv_sender, [Known(output.sequence.branch.choice, output.ids[:1]) for output in outputs], given.blocks


@pytest.mark.parametrize(
    ("length", "arrives"),
    by_default({(1, True), (16, True), (17, True), (17, False)}, product(LENGTHS, (True, False))),
)
def test_handed_over_choices_go_on_alike(model: Model, length: int, arrives: bool) -> None:
    kv_sender, firsts, blocks = hand_over(model, length, 3)
    kv_receiver = rig(model)
    taken = sequence("a", prompt(length), 12, n=3, **SAMPLED)
    assert kv_receiver.engine.park(taken)
    if arrives:
        kv_receiver.scheduler.memory.grow(taken, length)
        kv_receiver.storage.tensor[taken.blocks] = kv_sender.storage.tensor[blocks]
        kv_receiver.engine.promote(taken, length, firsts)
    else:
        kv_receiver.engine.take_back(taken, length)
        kv_receiver.engine.add(taken, firsts)
    frames = kv_receiver.engine.step() if arrives else []
    assert all((frame.index, len(frame.ids)) == (0, 2) for frame in frames)
    made = {name_of(frame.sequence): frame.sequence.output for frame in frames} | drain(kv_receiver.engine)
    assert made == each_alone(model, length, 3, 12)
    kv_sender.pool.release(blocks)
    check_free(kv_sender)
    check_free(kv_receiver)


def test_only_the_choices_that_go_on_are_taken_over(model: Model) -> None:
    kv_receiver = rig(model)
    taken = sequence("a", prompt(20), 12, n=3, **SAMPLED)
    assert kv_receiver.engine.park(taken)
    expected = each_alone(model, 20, 3, 12)
    kv_receiver.engine.take_back(taken, 20)
    kv_receiver.engine.add(taken, [Known(choice, expected[f"a/{choice}"][:1]) for choice in (1, 2)])
    assert drain(kv_receiver.engine) == {name: tokens for name, tokens in expected.items() if name != "a/0"}
    check_free(kv_receiver)


def test_an_abort_ends_every_choice(model: Model) -> None:
    ours = rig(model)
    ours.engine.add(sequence("a", prompt(20), 12, n=3, **SAMPLED))
    ours.engine.step()
    ours.engine.end("a", FinishReason.ABORTED)
    assert not ours.engine.has_work
    check_free(ours)
