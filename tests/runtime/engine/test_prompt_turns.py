# SPDX-License-Identifier: Apache-2.0
"""Prompts take turns in what a step computes of them, and callers by their weights."""

from collections import Counter
from random import Random

import pytest
from effort import examples
from hypothesis import given
from hypothesis.strategies import integers
from queue_world import BLOCK, QueueWorld
from tiny import sequence

from pontil.gpu_ops.kv.attention import QUERY_TILE
from pontil.runtime.engine.prompt_turns import PromptTurns
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.foundation.fair_share import FairShare


def prompt(name: str, length: int, caller: str = "", weight: float = 1.0, priority: int = 0) -> Sequence:
    made = sequence(name, [1] * length, 2)
    made.standing.share, made.standing.priority = FairShare(caller, weight), priority
    return made


def step(turns: PromptTurns, prompts: list[Sequence], budget: int) -> dict[str, int]:
    """Compute a step; leave out the prompts that are complete."""
    counts = turns.divide(prompts, budget)
    for one, count in counts.items():
        one.computed += count
    prompts[:] = [one for one in prompts if one.remaining]
    return {one.id: count for one, count in counts.items()}


def steps_until(turns: PromptTurns, prompts: list[Sequence], budget: int, name: str) -> int:
    """Return the number of steps after which this prompt is complete."""
    for number in range(1, 10_000):
        step(turns, prompts, budget)
        if all(one.id != name for one in prompts):
            return number
    raise AssertionError(f"{name} is never complete")


@given(start=integers(0, 500), remaining=integers(2, 2000), budget=integers(1, 600))
def test_alone_a_prompt_has_the_whole_budget_up_to_the_end_of_a_tile(start: int, remaining: int, budget: int) -> None:
    one = prompt("a", start + remaining)
    one.computed = start
    beyond = (start + budget) % QUERY_TILE
    cut = budget - beyond if beyond < budget else budget
    assert PromptTurns().divide([one], budget) == {one: remaining if remaining <= budget else cut}


@pytest.mark.parametrize("budget", [32, 64, 256, 8192])
@pytest.mark.parametrize("other", ["", "another caller"])
@pytest.mark.parametrize("before", [0, 7])
def test_a_short_prompt_beside_a_long_one_has_its_first_token_within_three_steps(
    budget: int, other: str, before: int
) -> None:
    turns, prompts = PromptTurns(), [prompt("long", 50_000, other)]
    for _ in range(before):
        step(turns, prompts, budget)
    prompts.append(prompt("short", 30))
    assert steps_until(turns, prompts, budget, "short") <= 3


@pytest.mark.parametrize("budget", [64, 256])
def test_a_short_prompt_passes_any_number_of_long_ones(budget: int) -> None:
    turns, prompts = PromptTurns(), [prompt(str(number), 50_000) for number in range(60)]
    for _ in range(150):
        step(turns, prompts, budget)
    prompts.append(prompt("short", 30))
    assert steps_until(turns, prompts, budget, "short") <= 3


@pytest.mark.parametrize("caller", ["", "another caller"])
def test_a_stream_of_short_prompts_leaves_a_long_one_its_half(caller: str) -> None:
    turns, prompts = PromptTurns(), [prompt("long", 12_800)]
    for number in range(400):
        prompts.append(prompt(f"short {number}", 64, caller))
        step(turns, prompts, 64)
    assert all(one.id != "long" for one in prompts)


def test_a_stream_of_new_callers_leaves_a_long_prompt_its_share() -> None:
    turns, prompts = PromptTurns(), [prompt("long", 12_800)]
    for number in range(401):
        prompts.append(prompt(f"short {number}", 64, f"caller {number}"))
        step(turns, prompts, 128)
    assert all(one.id != "long" for one in prompts)


def test_callers_share_the_budget_by_weight_whatever_number_of_prompts_they_have() -> None:
    turns = PromptTurns()
    prompts = [prompt(f"many {number}", 100_000, "many", 1.0) for number in range(20)]
    prompts += [prompt("one", 100_000, "one", 1.0), prompt("heavy", 100_000, "heavy", 2.0)]
    had: Counter[str] = Counter()
    for _ in range(100):
        for name, count in step(turns, prompts, 256).items():
            had[name.split()[0]] += count
    total = 100 * 256
    for caller, share in (("many", 0.25), ("one", 0.25), ("heavy", 0.5)):
        assert abs(had[caller] - share * total) <= 4 * QUERY_TILE, had


def test_prompts_of_a_caller_share_what_it_has() -> None:
    turns, prompts = PromptTurns(), [prompt(str(number), 100_000) for number in range(5)]
    for _ in range(100):
        step(turns, prompts, 256)
    done = [one.computed for one in prompts]
    assert max(done) - min(done) <= 4 * QUERY_TILE and sum(done) == 100 * 256


def test_the_lowest_priority_number_has_the_budget_first() -> None:
    turns = PromptTurns()
    prompts = [prompt("urgent", 1000), prompt("b", 1000, "other", 9.0, priority=1), prompt("c", 1000, priority=1)]
    assert step(turns, prompts, 960) == {"urgent": 960}
    assert step(turns, prompts, 168) == {"urgent": 40, "b": 64, "c": 64}


def test_a_rest_of_the_budget_that_reaches_no_tile_goes_to_another_prompt() -> None:
    turns, prompts = PromptTurns(), [prompt("a", 1000), prompt("b", 1000)]
    assert step(turns, prompts, 100) == {"a": 64, "b": 36}
    assert [one.computed for one in prompts] == [64, 36]


@pytest.mark.parametrize("seed", range(examples(20, 400)))
def test_whoever_comes_the_budget_is_used_and_chunks_end_with_tiles(seed: int) -> None:
    random, turns, prompts = Random(seed), PromptTurns(), list[Sequence]()
    for number in range(60):
        for _ in range(random.randrange(3)):
            caller = random.choice("abc")
            weight = {"a": 1.0, "b": 0.2, "c": 7.0}[caller]
            made = prompt(f"{number}", random.choice([2, 30, 64, 500, 3000]), caller, weight, random.randrange(2))
            made.standing.arrival, made.computed = number, random.choice([0, 0, 16, 64]) % (len(made.prompt) - 1)
            prompts.append(made)
        prompts.sort(key=lambda one: one.order)
        budget, wanted = random.choice([8, 64, 100, 256, 1000]), sum(one.remaining for one in prompts)
        counts = turns.divide(prompts, budget)
        partial = []
        for one, count in counts.items():
            assert 0 < count <= one.remaining
            if count < one.remaining and (one.computed + count) % QUERY_TILE:
                partial.append(one)
                assert one.computed % QUERY_TILE + count < QUERY_TILE, "it reaches a boundary"
        left = budget - sum(counts.values())
        assert left >= 0 and len(partial) <= 1
        assert not left or left < QUERY_TILE or sum(counts.values()) == wanted
        for one, count in counts.items():
            one.computed += count
        prompts = [one for one in prompts if one.remaining > 1]


def test_a_short_prompt_has_its_first_token_while_a_long_one_is_computed() -> None:
    """In the scheduler, beside sequences that decode."""
    world = QueueWorld(blocks=4000, budget=64)
    world.whole("decodes", [2] * BLOCK, 1000)
    world.step()
    world.whole("long", [3] * 50_000, 2)
    while not world.arrived[-1].computed:
        world.step()
    world.whole("short", [4] * 30, 2)
    short = world.arrived[-1]
    for _ in range(3):
        world.step()
    assert short.output, "its first token"
