# SPDX-License-Identifier: Apache-2.0
"""Seats are taken choice by choice and shared by callers; no seat is idle that somebody could take, nobody starves, and
no token depends on it."""

from random import Random

import pytest
from effort import examples
from seat_world import SeatWorld

from pontil.runtime.engine.sequences.sequence import Purpose, SequenceState
from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.foundation.seat_counts import SeatCounts


def held(world: SeatWorld, caller: str) -> int:
    return int(world.queues.seats.held.get(caller, 0))


def test_a_request_of_many_choices_needs_one_free_seat() -> None:
    world = SeatWorld(seats=4)
    world.add("long", tokens=40)
    world.add("many", n=4, tokens=9)
    for _ in range(3):
        world.step()
    assert set(world.first) == {"long", "many"} and len(world.queues.running) == 4
    assert [one.branch.choice for one in world.queues.paused] == [3]
    world.drain(100)
    assert world.scheduler.preemptions == 0


def test_another_callers_request_has_its_token_at_once_beside_64_long_choices() -> None:
    world = SeatWorld(seats=64)
    world.add("greedy", "a", n=64, tokens=300)
    for _ in range(20):
        world.step()
    assert held(world, "a") == 64
    for number in range(10):
        came = world.steps
        world.add(f"small{number}", "b", tokens=1)
        for _ in range(3):
            world.step()
        assert world.first[f"small{number}"] - came <= 2
    world.drain(1000)
    assert world.scheduler.recomputed == 0, "who gives up a seat keeps its blocks"


def test_callers_hold_seats_by_their_weights_within_one() -> None:
    world = SeatWorld(seats=12)
    world.add("a", "a", n=12, tokens=200)
    for _ in range(5):
        world.step()
    world.add("b", "b", n=12, tokens=200, weight=2.0)
    for _ in range(5):
        world.step()
    assert (held(world, "a"), held(world, "b")) == (4, 8)
    pauses = world.queues.pauses
    for _ in range(50):
        world.step()
    assert world.queues.pauses == pauses, "seats at their parts stay where they are"
    world.drain(1000)


def test_a_caller_below_its_part_has_blocks_though_another_took_all() -> None:
    world = SeatWorld(seats=8, blocks=40)
    world.add("greedy", "a", n=8, tokens=100)
    for _ in range(42):
        world.step()
    assert world.pool.available < 8 and held(world, "a") > 4
    came = world.steps
    world.add("small", "b", tokens=12, prompt=[1] * 100)
    for _ in range(20):
        world.step()
    assert world.first["small"] - came <= 4
    assert len(world.said["small"]) == 12, "it is not preempted for a caller above its part"
    world.drain(3000)


def test_what_is_promised_or_parked_keeps_its_seat() -> None:
    world = SeatWorld(seats=2)
    parked = world.add("parked", "a", remote=True)
    world.step()
    hands_over = world.add("handed", "a", tokens=5)
    hands_over.purpose = Purpose.HANDOVER
    world.scheduler.schedule()
    world.add("other", "b", tokens=1)
    world.scheduler.schedule()
    assert parked.state is SequenceState.WAITING_FOR_REMOTE_KVS
    assert hands_over.state is SequenceState.RUNNING and world.queues.pauses == 0


def test_prompts_of_many_choices_draw_no_more_first_tokens_in_a_step_than_there_are_seats() -> None:
    world = SeatWorld(seats=4, budget=256)
    for number in range(4):
        world.add(f"r{number}", n=4, tokens=3)
    most = 0
    while world.engine.sequences:
        before = {name: len(said) for name, said in world.said.items()}
        world.step()
        most = max(most, sum(name not in before for name in world.said))
    assert most == 4
    world.drain(1)


def test_prompts_that_are_cached_draw_no_more_first_tokens_either() -> None:
    world, text = SeatWorld(seats=4, budget=256), [7] * 9
    world.add("before", prompt=text)
    world.drain(20)
    for number in range(4):
        world.add(f"r{number}", n=4, tokens=3, prompt=text)
    most = 0
    while world.engine.sequences:
        before = set(world.said)
        world.step()
        most = max(most, len(world.said.keys() - before))
    assert most == 4


def test_nobody_waits_for_the_prompt_of_a_paused_sequence() -> None:
    world, text = SeatWorld(seats=2), [7] * 300
    world.add("first", "a", tokens=600)
    world.step()
    world.add("begun", "a", prompt=text)
    world.step()
    world.add("same", "b", prompt=text)
    came = world.steps
    for number in range(60):
        world.add(f"short{number}", "c", tokens=4)
        world.step()
    assert "same" in world.first and world.first["same"] - came < 40
    world.drain(2000)


@pytest.mark.parametrize("seed", range(examples(30, 600)))
def test_no_seat_is_idle_nobody_starves_and_no_token_changes(seed: int) -> None:
    """Random mixes of callers, weights, choices, priorities, handoffs and cancels, with room for all blocks: the world
    checks each schedule. Every request ends within the steps that its tokens and those of all others need."""
    random = Random(seed)
    world = SeatWorld(random.choice([1, 2, 5, 16, 64]), late=random.random() < 0.5, caching=random.random() < 0.7)
    ranked, weights = random.random() < 0.3, {name: random.choice([0.5, 1.0, 3.0]) for name in "abc"}
    work = 0
    for number in range(random.randint(1, 25)):
        caller, n = random.choice("abc"), min(world.seats, random.choice([1, 1, 1, 2, 7, 64]))
        tokens = random.choice([1, 2, 9, 40])
        prompt = [random.choice([1, 2]) for _ in range(random.randint(1, 30))] if random.random() < 0.5 else None
        priority = random.choice([0, 1]) if ranked else 0
        remote = world.caching and random.random() < 0.3 and tokens > 1
        world.add(f"r{number}", caller, n, tokens, prompt, weights[caller], priority, remote)
        work += n * tokens + 40
        for _ in range(random.choice([0, 0, 1, 5])):
            world.step()
        if random.random() < 0.15:
            world.cancel(f"r{random.randint(0, number)}")
    while world.engine.sequences:
        world.step()
        assert world.steps < 100 + 2 * work
    world.drain(1)


@pytest.mark.parametrize("seed", range(examples(20, 400)))
def test_with_few_blocks_too_everybody_is_served_and_no_token_changes(seed: int) -> None:
    random = Random(seed)
    world = SeatWorld(random.choice([2, 5, 16]), random.randint(24, 40), random.random() < 0.5)
    for number in range(random.randint(1, 20)):
        caller, n = random.choice("abc"), min(world.seats, random.choice([1, 1, 3, 16]))
        priority = random.choice([0, 0, 1])
        world.add(f"r{number}", caller, n, random.choice([1, 5, 40]), None, random.choice([1.0, 3.0]), priority)
        for _ in range(random.choice([0, 1, 5])):
            world.step()
        if random.random() < 0.15:
            world.cancel(f"r{random.randint(0, number)}")
    world.drain(20_000)


@pytest.mark.parametrize("seed", range(20))
def test_a_seat_that_was_given_is_not_asked_back(seed: int) -> None:
    random = Random(seed)
    counts, shares = SeatCounts(), [FairShare(name, random.choice([0.1, 1.0, 2.5, 10.0])) for name in "abcd"]
    for share in shares:
        counts.add(share, random.randint(0, 40))
    for _ in range(200):
        moves = [(v, c) for v in shares for c in shares if counts.yields(v.caller, c)]
        if not moves:
            break
        giver, taker = random.choice(moves)
        counts.add(giver, -1)
        counts.add(taker)
        assert not counts.yields(taker.caller, giver)
    else:
        pytest.fail("seats go round for ever")
