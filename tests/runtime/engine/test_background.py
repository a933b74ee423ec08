# SPDX-License-Identifier: Apache-2.0
"""The background has idle seats, gives them back between two steps, and rests while a prompt of others is computed."""

from collections.abc import Callable
from random import Random

import pytest
from effort import examples
from seat_world import SeatWorld

from pontil.runtime.engine.background_room import LATELY, BackgroundRoom
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.foundation.fair_share import ServiceClass


def add_line(world: SeatWorld, name: str, tokens: int = 60, prompt: list[int] | None = None) -> Sequence:
    return world.add(name, "owner", tokens=tokens, priority=ServiceClass.BATCH.place(), prompt=prompt)


def lines_running(world: SeatWorld) -> int:
    return int(world.queues.seats.lent)


def test_it_takes_every_idle_seat_and_gives_each_to_whoever_comes() -> None:
    world = SeatWorld(seats=4)
    for number in range(6):
        add_line(world, f"line{number}")
    for _ in range(4):
        world.step()
    assert lines_running(world) == 4
    for number in range(4):
        came = world.steps
        world.add(f"client{number}", "a", tokens=50)
        for _ in range(3):
            world.step()
        assert world.first[f"client{number}"] - came <= 2, "not even the last seat is held"
    assert lines_running(world) == 0 and world.scheduler.preemptions == 0, "paused lines keep their blocks"
    world.drain(1000)


def test_its_own_lines_never_take_a_seat_from_each_other_or_anybody() -> None:
    world = SeatWorld(seats=2)
    world.add("client", "a", tokens=30)
    world.add("other", "a", tokens=30)
    for _ in range(3):
        world.step()
    for number in range(4):
        add_line(world, f"line{number}", 9)
    for _ in range(5):
        world.step()
    assert lines_running(world) == 0 and world.queues.pauses == 0
    world.drain(400)
    assert world.queues.pauses == 0


def test_a_step_with_a_prompt_of_others_has_nothing_of_it() -> None:
    world = SeatWorld(seats=8, budget=16)
    for number in range(4):
        add_line(world, f"line{number}", 80)
    add_line(world, "long", 2, prompt=[7] * 200)
    for _ in range(3):
        world.step()
    said = {name: len(tokens) for name, tokens in world.said.items()}
    computed = next(one for one in world.queues.running if one.id == "long").computed
    client = world.add("client", "a", tokens=1, prompt=[9] * 64)
    came = world.steps
    while "client" not in world.first:
        world.step()
    assert world.first["client"] - came == len(client.prompt) // 16, "as soon as alone"
    assert {name: len(world.said[name]) for name in said} == said
    assert next(one for one in world.queues.running if one.id == "long").computed == computed
    world.drain(1000)


def measured(seconds_of: Callable[[int], float]) -> tuple[BackgroundRoom, list[float]]:
    """A room that has seen steps of several numbers of rows, and the time of its clock."""
    now = [0.0]
    room = BackgroundRoom(lambda: now[0])
    for rows in (1, 4, 16, 64) * 20:
        began, now[0] = now[0], now[0] + seconds_of(rows)
        room.computed(rows, began, now[0])
    return room, now


def test_a_step_is_little_longer_for_it() -> None:
    """Rows that cost are few, since somebody may come and wait for the rest of the step; others are all there."""
    room, now = measured(lambda rows: 0.010 + 0.002 * rows)
    assert room.rows(0, are_there=False) is None, "nobody else has come yet"
    assert room.rows(0, are_there=True) == 6, "0.012 s more than a step of one row"
    assert room.rows(5, are_there=True) == 5, "half of 0.020 s"
    now[0] += LATELY - 1.0
    assert room.rows(0, are_there=False) == 6
    now[0] += 2.0
    assert room.rows(0, are_there=False) is None
    flat, _ = measured(lambda rows: 0.020 + 1e-6 * rows)
    assert (flat.rows(0, are_there=True) or 1 << 20) > 10_000
    steep, _ = measured(lambda rows: 0.010 * rows)
    assert steep.rows(0, are_there=True) == 1, "it goes on in any case"


def test_a_step_that_was_launched_before_the_last_one_was_over_counts_from_then() -> None:
    room = BackgroundRoom(lambda: 0.0)
    room.computed(4, began=0.0, ended=0.1)
    room.computed(4, began=0.01, ended=0.2)
    assert room.cost.seconds(4) == pytest.approx(0.1)


def test_lines_have_so_many_rows_of_a_step_and_all_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SeatWorld(seats=8, budget=16)
    monkeypatch.setattr(world.scheduler.background, "rows", lambda others, are_there: 3)
    for number in range(12):
        add_line(world, f"line{number}", 9, prompt=[number] * (5 + 5 * number))
    world.add("client", "a", tokens=30)
    most, schedule = [0], world.scheduler.schedule

    def watched() -> Batch:
        batch: Batch = schedule()
        most.append(sum(span.count for span in batch.spans if span.sequence.standing.share.gives_way))
        return batch

    monkeypatch.setattr(world.scheduler, "schedule", watched)
    world.drain(2000)
    assert max(most) == 3


def test_others_get_its_blocks_and_it_gets_none_of_theirs() -> None:
    world = SeatWorld(seats=4, blocks=18)
    for number in range(3):
        add_line(world, f"line{number}", 30)
    for _ in range(20):
        world.step()
    world.add("client", "a", tokens=60, prompt=[3] * 60)
    world.drain(2000)
    assert world.scheduler.preemptions > 0


@pytest.mark.parametrize("seed", range(examples(6, 200)))
def test_tokens_are_those_that_each_has_alone(seed: int) -> None:
    random, world = Random(seed), SeatWorld(seats=4, blocks=random_blocks(seed))
    for number in range(24):
        if random.random() < 0.5:
            add_line(world, f"line{number}", random.randint(1, 40))
        else:
            caller = random.choice("abc")
            world.add(f"client{number}", caller, n=random.choice((1, 2)), tokens=random.randint(1, 30))
        for _ in range(random.randint(0, 6)):
            world.step()
    world.drain(5000)


def random_blocks(seed: int) -> int:
    return 60 if seed % 2 else 4000


def test_it_keeps_its_part_of_many_seats_and_of_steps() -> None:
    world = SeatWorld(seats=40, budget=8)
    for number in range(30):
        add_line(world, f"line{number}", 600)
    for _ in range(6):
        world.step()
    for number in range(40):
        world.add(f"client{number}", "a", tokens=300)
    for _ in range(30):
        world.step()
    assert lines_running(world) == 2, "a twentieth"
    before = sum(map(len, world.said.values()))
    said = {name: len(tokens) for name, tokens in world.said.items() if name.startswith("line")}
    for number in range(3):
        world.add(f"long{number}", "b", tokens=1, prompt=[number] * 400)
    for _ in range(100):
        world.step()
    more = {name: len(world.said[name]) - count for name, count in said.items()}
    assert sum(map(len, world.said.values())) > before and sum(more.values()) == 2 * 5, "one step of twenty"
