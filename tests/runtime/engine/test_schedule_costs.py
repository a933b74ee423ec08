# SPDX-License-Identifier: Apache-2.0
"""Sequences that wait cost a step next to nothing: operations are counted, not seconds."""

import sys
from dataclasses import replace
from types import FrameType

import pytest
from queue_world import BLOCK, QueueWorld

WAITING, TOKENS, RUNNING = 100, 200 * BLOCK, 16
SHARED = [7] * TOKENS
# Calls of functions, of whatever language, that all who wait may add to a step.
MORE = 8 * RUNNING


class Calls:
    """Calls while it is entered: all of them, and those of functions by these names."""

    def __init__(self, *names: str) -> None:
        self.count, self.names = 0, dict.fromkeys(names, 0)

    def __enter__(self) -> "Calls":
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def note(self, frame: FrameType, event: str, _: object) -> None:
        self.count += event in ("call", "c_call")
        if event == "call" and frame.f_code.co_name in self.names:
            self.names[frame.f_code.co_name] += 1


def calls_of(world: QueueWorld) -> int:
    """Return the calls that one step's schedule makes; the least of a few, as sequences take a block now and then."""
    found = []
    for _ in range(3):
        with Calls() as calls:
            batch = world.scheduler.schedule()
        found.append(calls.count)
        world.scheduler.advance(batch)
        for span in batch.spans:
            if span.sequence.remaining == 0:
                world.say(span.sequence)
    return min(found)


def busy(seats: int, blocks: int) -> QueueWorld:
    """Return a world with sequences that decode."""
    world = QueueWorld(seats=seats, blocks=blocks, budget=4096)
    # Without the checks of the world, which are operations too.
    world.scheduler.reserve = world.reserve  # type: ignore[method-assign]
    for number in range(RUNNING):
        world.whole(f"runs {number}", [number], 5000)
    while len(world.scheduler.running) < RUNNING:
        world.step()
    return world


def compute(world: QueueWorld, prompt: list[int]) -> None:
    """Have a prompt computed, so that its blocks are cached."""
    world.whole("computes it", prompt, 1)
    one = world.arrived[-1]
    while one in world.unfinished:
        world.step()


def wait_for_keys(world: QueueWorld) -> None:
    for _ in range(400):
        world.step()


def test_those_that_wait_for_a_prefix_cost_a_step_nothing() -> None:
    world = busy(seats=RUNNING + 8, blocks=RUNNING * 400 + 1000)
    world.scheduler.budget = replace(world.scheduler.budget, interleaved=1)
    world.whole("computes it", SHARED, 5000)
    world.step()
    alone = calls_of(world)
    for number in range(WAITING):
        world.whole(f"waits {number}", [*SHARED, number], 2)
    wait_for_keys(world)
    assert len(world.scheduler.waiting) == WAITING
    assert calls_of(world) <= alone + MORE


def test_those_that_wait_for_a_seat_cost_a_step_nothing() -> None:
    world = busy(seats=RUNNING + 1, blocks=RUNNING * 400 + 1000)
    compute(world, SHARED)
    world.scheduler.queues.max_num_seqs = RUNNING
    alone = calls_of(world)
    for number in range(WAITING):
        world.whole(f"waits {number}", [*SHARED, number], 2)
    wait_for_keys(world)
    assert len(world.scheduler.waiting) == WAITING
    assert calls_of(world) <= alone + MORE


@pytest.mark.parametrize("cached", [True, False])
def test_those_that_wait_for_memory_cost_a_step_nothing(cached: bool) -> None:
    world = busy(seats=RUNNING + 8, blocks=RUNNING * 40 + 300)
    if cached:
        compute(world, SHARED)
    alone = calls_of(world)
    for number in range(waiting := WAITING // 3):
        world.whole(f"waits {number}", [*SHARED, *[number] * (world.pool.available * BLOCK)], 2)
    wait_for_keys(world)
    assert len(world.scheduler.waiting) == waiting and not world.scheduler.preemptions
    assert calls_of(world) <= alone + MORE


def test_keys_are_made_a_few_at_a_time_and_each_once() -> None:
    """In the first steps after many came at once, too."""
    world = busy(seats=RUNNING + 8, blocks=RUNNING * 400 + 1000)
    for number in range(20):
        world.whole(f"waits {number}", [number] * TOKENS, 2)
    with Calls("chain") as first:
        world.step()
    assert first.names["chain"] <= 512
    for one in world.arrived[:RUNNING]:
        one.params = replace(one.params, max_tokens=1)
    with Calls("chain") as calls:
        world.drain(1000)
    assert calls.names["chain"] <= 20 * TOKENS // BLOCK


def test_nothing_else_to_do_means_no_waiting_for_keys() -> None:
    world = QueueWorld(blocks=5000)
    world.whole("long", [3] * 20_000, 2)
    world.step()
    assert world.arrived[0].computed


def test_a_short_prompt_does_not_wait_for_the_keys_of_long_ones() -> None:
    world = busy(seats=RUNNING + 8, blocks=RUNNING * 400 + 20_000)
    for number in range(20):
        world.whole(f"long {number}", [number] * 20_000, 2)
    world.step()
    world.whole("short", [3] * 30, 2)
    for _ in range(4):
        world.step()
    assert world.arrived[-1].computed
