# SPDX-License-Identifier: Apache-2.0
"""Evicted prefixes come back from a tier: no token changes, and nothing waits for longer than computing takes."""

from random import Random

import pytest
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from late_runner import make_late
from tiers import ScriptedTier, tier_below, wait_until_idle
from tiny import Rig, build, check_free, computed_by, drain, reference, rig, sequence

from pontil.runtime.cache.tier.tier_store import TierStore
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence, SequenceState
from pontil.runtime.models.model import Model

SAMPLED = {"temperature": 1.3, "top_p": 0.95}


def prompt(length: int, seed: int = 5) -> list[int]:
    return torch.randint(0, 97, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


def scripted(one: Rig, blocks: int = 100) -> ScriptedTier:
    size = one.storage.layout.block_bytes
    return ScriptedTier(blocks * size, size)


def fill(one: Rig, *seeds: int) -> None:
    """Compute prompts that take the whole pool, so that all others are evicted from it."""
    for seed in seeds:
        one.engine.add(sequence(f"other {seed}", prompt(16 * one.pool.capacity - 1, seed), 1))
        drain(one.engine)


def evict(one: Rig, store: TierStore, length: int = 100) -> None:
    """Compute a prompt, and have it evicted."""
    one.engine.add(sequence("a", prompt(length), 20, **SAMPLED))
    drain(one.engine)
    fill(one, 90)
    wait_until_idle(store)


@pytest.mark.parametrize("length", [15, 16, 100])
def test_an_evicted_prefix_is_read_and_not_computed(model: Model, length: int) -> None:
    alone, ours = rig(model, caching=False), rig(model, blocks=12)
    alone.engine.add(sequence("b", prompt(length), 20, **SAMPLED))
    expected = drain(alone.engine)["b"]
    with tier_below(ours.engine) as store:
        evict(ours, store, length)
        again = sequence("b", prompt(length), 20, **SAMPLED)
        ours.engine.add(again)
        found = length - 1
        assert computed_by(ours.engine) == length - found + 19
        assert again.output == expected and again.history.cached == found
        assert ours.scheduler.tier.hits == found and again.history.admissions == 1
        check_free(ours)


def test_a_block_that_saves_nothing_is_not_read(model: Model) -> None:
    """The last position is computed in any case, which may be all that a block has."""
    ours = rig(model, blocks=12)
    tier = scripted(ours)
    with tier_below(ours.engine, tier) as store:
        evict(ours, store, 33)
        again = sequence("b", prompt(33), 1)
        ours.engine.add(again)
        drain(ours.engine)
        assert again.history.cached == 32 and tier.reads == 2
        ours.engine.add(sequence("c", prompt(33), 1))
        drain(ours.engine)
        assert tier.reads == 2 and ours.scheduler.tier.refused == 0
        check_free(ours)


def parked(one: Rig, name: str = "b", length: int = 100) -> Sequence:
    """Return a sequence whose prefix is being read."""
    made = sequence(name, prompt(length), 5)
    one.engine.add(made)
    one.engine.step()
    assert made.state is SequenceState.WAITING_FOR_REMOTE_KVS
    return made


@pytest.fixture(scope="module")
def cold(model: Model) -> list[int]:
    """Return what follows the prompt of 100 tokens without any cache."""
    alone = rig(model, caching=False)
    alone.engine.add(sequence("b", prompt(100), 5))
    return drain(alone.engine)["b"]


def test_others_go_on_while_a_prefix_is_read(model: Model, cold: list[int]) -> None:
    ours = rig(model, blocks=20)
    tier = scripted(ours)
    with tier_below(ours.engine, tier) as store:
        evict(ours, store, 100)
        fill(ours, 91)
        tier.may_read.clear()
        waits, other = parked(ours), sequence("c", prompt(40, 9), 8)
        ours.engine.add(other)
        while other.finish is None:
            ours.engine.step()
        assert waits.state is SequenceState.WAITING_FOR_REMOTE_KVS and ours.scheduler.queues.seats_taken == 1
        tier.may_read.set()
        assert drain(ours.engine)["b"] == cold and waits.history.cached == 99
        check_free(ours)


def test_two_with_one_prefix_read_it_once(model: Model, cold: list[int]) -> None:
    ours = rig(model, blocks=30)
    tier = scripted(ours)
    with tier_below(ours.engine, tier) as store:
        evict(ours, store)
        for name in "bc":
            ours.engine.add(sequence(name, prompt(100), 5))
        tokens = drain(ours.engine)
        assert tokens["b"] == tokens["c"] == cold and tier.reads == 7
        check_free(ours)


def test_a_sequence_may_end_while_its_prefix_is_read(model: Model, cold: list[int]) -> None:
    ours = rig(model, blocks=12)
    tier = scripted(ours)
    with tier_below(ours.engine, tier) as store:
        evict(ours, store)
        tier.may_read.clear()
        parked(ours)
        ours.engine.end("b", FinishReason.ABORTED)
        # The thread may still write to these: nobody else gets them.
        (load,) = ours.scheduler.tier.open.values()
        assert all(ours.pool.owners[block] == 1 for block in load.blocks) and not ours.engine.has_work
        tier.may_read.set()
        wait_until_idle(store)
        again = sequence("b", prompt(100), 5)
        ours.engine.add(again)
        assert drain(ours.engine)["b"] == cold and again.history.cached == 99 and tier.reads == 7
        check_free(ours)


def test_a_read_that_takes_longer_than_computing_is_given_up(model: Model, cold: list[int]) -> None:
    now = [0.0]
    ours = rig(model, blocks=30)
    ours.scheduler.tier.clock = lambda: now[0]
    tier = scripted(ours)
    with tier_below(ours.engine, tier) as store:
        evict(ours, store)
        tier.may_read.clear()
        late = parked(ours)
        (load,) = ours.scheduler.tier.open.values()
        assert load.deadline == 99 * store.costs.per_token
        now[0] = load.deadline
        # No other one waits for a tier that is behind.
        ours.engine.add(sequence("c", prompt(100), 5))
        tokens = drain(ours.engine)
        assert tokens["b"] == tokens["c"] == cold and late.history.cached == 0
        assert (ours.scheduler.tier.late, ours.scheduler.tier.hits) == (1, 0)
        tier.may_read.set()
        wait_until_idle(store)
        ours.engine.step()
        check_free(ours)


def test_a_sequence_that_gave_up_its_read_waits_for_room(model: Model, cold: list[int]) -> None:
    now = [0.0]
    ours = rig(model, blocks=9)
    ours.scheduler.tier.clock = lambda: now[0]
    tier = scripted(ours)
    with tier_below(ours.engine, tier) as store:
        evict(ours, store)
        tier.may_read.clear()
        late = parked(ours)
        now[0] = 1e9
        ours.engine.step()
        assert late.state is SequenceState.WAITING and ours.scheduler.stalled
        tier.may_read.set()
        assert drain(ours.engine)["b"] == cold and late.history.cached == 99
        check_free(ours)


def test_damaged_blocks_are_computed_and_forgotten(model: Model, cold: list[int]) -> None:
    ours = rig(model, blocks=12)
    tier = scripted(ours)
    with tier_below(ours.engine, tier) as store:
        evict(ours, store)
        tier.lies = True
        again = sequence("b", prompt(100), 5)
        ours.engine.add(again)
        assert drain(ours.engine)["b"] == cold and again.history.cached == 0
        assert store.counts.damaged == 1 and store.counts.loaded == 0 and tier.reads == 1
        check_free(ours)


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), ZeroDivisionError("a fault of ours")], ids=repr)
def test_a_tier_that_fails_costs_no_request(
    model: Model, cold: list[int], fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    ours = rig(model, blocks=12)
    tier = scripted(ours)
    with tier_below(ours.engine, tier) as store:
        evict(ours, store)
        tier.fault = fault
        again = sequence("b", prompt(100), 5)
        ours.engine.add(again)
        assert drain(ours.engine)["b"] == cold and again.history.cached == 0
        tier.fault = fault if isinstance(fault, OSError) else None
        fill(ours, 91, 92)
        if isinstance(fault, OSError):
            assert "the memory tier of the KV cache failed (Input/output error) and is switched off" in caplog.text
            assert store.chain.failures == 1 and not store.chain.tiers
        check_free(ours)


def test_what_is_computed_sooner_is_not_read(model: Model, cold: list[int]) -> None:
    ours = rig(model, blocks=12)
    tier = scripted(ours)
    with tier_below(ours.engine, tier) as store:
        evict(ours, store)
        store.costs.per_token = 0.0
        again = sequence("b", prompt(100), 5)
        ours.engine.add(again)
        assert drain(ours.engine)["b"] == cold and (again.history.cached, tier.reads) == (0, 0)
        assert ours.scheduler.tier.refused == 1


def test_prompts_whose_logprobs_are_wanted_are_not_read(model: Model) -> None:
    ours = rig(model, blocks=12)
    tier = scripted(ours)
    with tier_below(ours.engine, tier) as store:
        evict(ours, store)
        ours.engine.add(sequence("b", prompt(100), 5, prompt_logprobs=1))
        drain(ours.engine)
        assert tier.reads == 0


def test_a_block_that_a_copy_still_reads_is_not_read_into(model: Model) -> None:
    """The copy of an unfilled block has to read it before a tier's thread may write there."""
    ours, alone = rig(model, blocks=9), rig(model, caching=False)
    alone.engine.add(sequence("b", prompt(40), 5))
    expected = drain(alone.engine)["b"]
    with tier_below(ours.engine) as store:
        evict(ours, store, 40)
        ours.engine.add(sequence("c", prompt(20, 3), 1))
        drain(ours.engine)
        copying, reading = sequence("c", prompt(20, 3), 5), sequence("b", prompt(40), 5)
        ours.engine.add(copying)
        ours.engine.add(reading)
        ours.scheduler.admit()
        assert ours.scheduler.memory.copies and len(ours.scheduler.tier.unsent) == 1 and not store.reads
        tokens = drain(ours.engine)
        assert tokens["b"] == expected and reading.history.cached == 39 and copying.history.cached == 19
        check_free(ours)


@settings(max_examples=examples(2, 60))
@given(st.integers(0, 1 << 32))
def test_no_token_depends_on_a_tier(model: Model, seed: int) -> None:
    """Prompts with common beginnings come, are preempted, and leave, while blocks go to tiers and come back, also with
    steps in flight and with drafts."""
    chance = Random(seed)
    ours, alone = rig(model, blocks=14, drafts=chance.choice([0, 0, 3])), rig(model, caching=False)
    if chance.random() < 0.5:
        make_late(ours.engine)
    small = scripted(ours, chance.randint(1, 12))
    with tier_below(ours.engine, small, scripted(ours, 40)) as store:
        made, expected = dict[str, Sequence](), dict[str, Sequence]()
        for number in range(8):
            tokens = prompt(chance.randint(16, 120), chance.randint(1, 3))
            for engine, kept in ((ours.engine, made), (alone.engine, expected)):
                kept[str(number)] = sequence(str(number), tokens, 20, seed=number, **SAMPLED)
                engine.add(kept[str(number)])
            for _ in range(chance.randint(0, 30)):
                ours.engine.step()
            small.lies = chance.random() < 0.2
            if chance.random() < 0.2:
                ours.engine.end(str(number), FinishReason.ABORTED)
        drain(ours.engine)
        drain(alone.engine)
        for name, one in made.items():
            assert one.finish is FinishReason.ABORTED or one.output == expected[name].output
        while ours.scheduler.tier.open:
            ours.engine.step()
        check_free(ours)
        assert store.counts.stored > 0
