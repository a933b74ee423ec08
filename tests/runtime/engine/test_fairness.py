# SPDX-License-Identifier: Apache-2.0
"""Requests that are computed here and requests that are handed over are admitted in one order: priority, then arrival.
No request starves behind later ones."""

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis.strategies import DrawFn, booleans, composite, integers, lists
from queue_world import BLOCK, QueueWorld
from tiny import build, check_free, drain, reference, rig, sequence

from pontil.runtime.engine.sequences.sequence import SequenceState

CROWD = 2000


def prompt(name: int, length: int = BLOCK) -> list[int]:
    return [name] * length


@pytest.mark.parametrize("kind", ["whole", "handed"])
def test_nobody_is_passed_by_thousands_that_come_later(kind: str) -> None:
    """A crowd of the other kind, of which some always wait."""
    world = QueueWorld(seats=4)
    other = {"whole": world.handed, "handed": world.whole}[kind]
    for number in range(8):
        other(f"before{number}", prompt(number), 5)
    {"whole": world.whole, "handed": world.handed}[kind]("modest", prompt(10), 5)
    for number in range(CROWD):
        other(f"{number}", prompt(11 + number), 2)
        if number % 2:
            world.step()
    assert world.admitted.index("modest") == 8
    world.drain(2 * CROWD)


def test_the_lowest_number_goes_first_whoever_computes_the_prompt() -> None:
    world = QueueWorld(seats=1)
    world.handed("runs", prompt(1), 5, priority=9)
    for name, priority in (("late", 5), ("first", -1), ("later", 5), ("second", 0)):
        world.whole(name, prompt(2), 2, priority)
        world.handed(f"{name} too", prompt(3), 2, priority)
    world.drain(100)
    names = ("first", "second", "late")
    expected = [each for name in names for each in (name, f"{name} too")]
    expected[5:] = ["late too", "later", "later too"]
    assert world.admitted == ["runs", *expected]


def test_who_cannot_be_asked_holds_up_only_itself() -> None:
    world = QueueWorld(seats=2)
    world.handed("silent", prompt(1), ready_at=40)
    for number in range(6):
        world.handed(f"h{number}", prompt(10 + number))
        world.whole(f"w{number}", prompt(20 + number))
    for _ in range(39):
        world.step()
    assert len(world.admitted) == 12 and "silent" not in world.admitted
    world.drain(10)


def test_nobody_waits_for_what_a_lower_priority_computes() -> None:
    """The sequence that computes a shared prefix comes last and gets nothing of the budget; the urgent request that has
    the same prefix computes it itself."""
    world = QueueWorld(seats=8, budget=32)
    world.whole("low", prompt(1, 400), 2, priority=9)
    world.step()
    world.whole("urgent", prompt(1, 400), 2, priority=0)
    for number in range(60):
        world.whole(f"m{number}", prompt(2 + number, 64), 2, priority=5)
        world.step()
    urgent = next(one for one in world.arrived if one.id == "urgent")
    assert urgent.state is SequenceState.FINISHED and world.admitted[:2] == ["low", "urgent"]
    assert urgent.history.cached + urgent.history.prompt_computed == 400 and urgent.history.cached >= 32
    world.drain(200)


def test_of_those_that_compute_a_beginning_the_oldest_is_waited_for() -> None:
    world = QueueWorld(seats=8, budget=32)
    world.whole("low", prompt(1, 200), 2, priority=9)
    world.step()
    for name in ("urgent", "as urgent"):
        world.whole(name, prompt(1, 200), 2)
    world.step()
    states = {one.id: one.state for one in world.arrived}
    assert states == {"low": SequenceState.RUNNING, "urgent": SequenceState.RUNNING, "as urgent": SequenceState.WAITING}
    world.drain(50)
    assert [one.history.cached for one in world.arrived] == [0, 32, 199]


def test_the_next_turn_does_not_wait_for_an_answer_that_is_being_kept() -> None:
    """Answers are kept only while no sequence waits."""
    ours = rig(build(reference()))
    first = sequence("a", [5] * 40, 150)
    ours.engine.add(first)
    drain(ours.engine)
    assert ours.engine.keep_answers() and ours.scheduler.answer_recompute.current is not None
    ours.engine.add(sequence("b", first.prompt + first.output + [7] * 20, 3))
    for _ in range(10):
        ours.engine.step()
    assert not ours.engine.sequences
    while ours.engine.keep_answers():
        pass
    check_free(ours)


@composite
def crowds(draw: DrawFn) -> list[tuple[int, bool, list[int], int, int, int, int]]:
    """For each request: the number of steps after the previous one, whether it is handed over, its prompt, its number
    of tokens, its priority, the time until its peer can be asked, and the time that the peer computes."""
    prompts = lists(integers(1, 3), min_size=1, max_size=4)
    return [
        (
            draw(integers(0, 2)), draw(booleans()), [name for name in draw(prompts) for _ in range(BLOCK + 1)],
            draw(integers(1, 30)), draw(integers(0, 2)), draw(integers(0, 20)), draw(integers(1, 5)),
        )
        for _ in range(draw(integers(1, 40)))
    ]  # fmt: skip


@settings(deadline=None, max_examples=examples(25, 1000))
@given(crowd=crowds(), seats=integers(1, 5), blocks=integers(8, 24), budget=integers(8, 80))
def test_whoever_comes_nobody_is_passed_without_an_excuse(
    crowd: list[tuple[int, bool, list[int], int, int, int, int]], seats: int, blocks: int, budget: int
) -> None:
    """`QueueWorld` checks each admission: requests that precede the newcomer have room already, except for one whose
    peer cannot be asked or whose prefix is being computed by one that precedes it."""
    world = QueueWorld(seats=seats, blocks=blocks, budget=budget)
    for number, (pause, is_handed, tokens, count, priority, silent, takes) in enumerate(crowd):
        for _ in range(pause):
            world.step()
        if is_handed:
            world.handed(str(number), tokens, count, priority, world.steps + silent, takes)
        else:
            world.whole(str(number), tokens, count, priority)
    world.drain(100 * (1 + len(crowd)))
