# SPDX-License-Identifier: Apache-2.0
"""Workers that are slow beside others of their role are known to be so, and equal ones are not."""

import random
from dataclasses import replace

import pytest
from effort import examples
from fleet_proxy import hello_of
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, lists, tuples

from pontil.runtime.proxy.balance.paces import KNOWN, MEMORY, PART, Paces, rounded
from pontil.runtime.proxy.fleet.registered_worker import Contact, RegisteredWorker
from pontil.runtime.proxy.routing.pace import FASTEST, WorkerPace

BASE, ROW, TOKEN = 0.01, 0.001, 0.0005
COUNTS = integers(1, 64)


def worker(name: str, role: str = "mixed") -> RegisteredWorker:
    return RegisteredWorker(replace(hello_of(0, role), name=name, sender=name), Contact(0.0))


class SeenFleet:
    """Workers that take so many times as long each, whose heartbeats come once a second."""

    def __init__(self, times: list[float], role: str = "mixed") -> None:
        self.times = times
        self.workers = [worker(f"{role}:{number}", role) for number in range(len(times))]
        self.paces, self.now = Paces(), 0.0

    def tell(self, number: int, rows: int, prompt: int, steps: int, stands: float = 0.0) -> None:
        """Have a worker say that it made so many steps, each with so many rows and prompt tokens."""
        seconds = steps * self.times[number] * (BASE + ROW * rows + TOKEN * prompt) + stands
        self.paces.learn(self.workers[number], self.now, steps, seconds, steps * rows, steps * prompt)

    def second(self, *told: tuple[int, int]) -> None:
        """Have each worker make steps of so many rows for a second: half of them with so many prompt tokens."""
        self.now += 1.0
        for number, (rows, prompt) in enumerate(told):
            for tokens in (0, prompt) if prompt else (0,):
                each = self.times[number] * (BASE + ROW * rows + TOKEN * tokens)
                self.tell(number, rows, tokens, max(1, int(0.5 / each)))
        self.paces.assign(self.workers, self.now)

    @property
    def told(self) -> list[tuple[float, float]]:
        return [(one.pace.prompts, one.pace.steps) for one in self.workers]


@settings(max_examples=examples(100, 1000))
@given(loads=lists(tuples(COUNTS, integers(0, 256), COUNTS, integers(0, 256)), min_size=1, max_size=40))
def test_equal_workers_are_as_fast_as_each_other_whatever_they_do(loads: list[tuple[int, int, int, int]]) -> None:
    fleet = SeenFleet([1.0, 1.0])
    for first_rows, first_prompt, second_rows, second_prompt in loads:
        fleet.second((first_rows, first_prompt), (second_rows, second_prompt))
        assert all(one.pace is FASTEST for one in fleet.workers)


@pytest.mark.parametrize("rows", [(8, 8), (8, 2), (16, 1)], ids=str)
@pytest.mark.parametrize("times", [2.0, 4.0])
def test_a_slow_worker_is_known_to_be_slow(times: float, rows: tuple[int, int]) -> None:
    """It is seen while both have as much to do, and stays so when it gets less."""
    fleet = SeenFleet([1.0, times])
    for had in ((8, 8), rows):
        for _ in range(60):
            fleet.second((had[0], 128), (had[1], 128))
        fast, slow = fleet.told
        assert fast == (1.0, 1.0)
        assert all(1.5 <= one <= 1.25 * times for one in slow)
        assert fleet.workers[1].pace.behind > 0.0
    # Its load has it, and its recent work counts as much more, for every request that is routed.
    slow_worker = fleet.workers[1]
    slow_worker.recent = 100.0
    assert slow_worker.load.pace is slow_worker.pace and slow_worker.load.recent == 100 * max(slow)


def test_a_slow_worker_is_known_where_every_second_has_prompts() -> None:
    """With short answers there is no second in which a worker only decodes."""
    fleet = SeenFleet([1.0, 2.0])
    for _ in range(20):
        fleet.now += 1.0
        for number, times in enumerate(fleet.times):
            seconds = times * (48 * (BASE + ROW) + 64 * TOKEN)
            fleet.paces.learn(fleet.workers[number], fleet.now, 48, seconds, 48, 64)
        fleet.paces.assign(fleet.workers, fleet.now)
    (fast, slow) = fleet.told
    assert fast == (1.0, 1.0) and min(slow) >= 1.5


def test_only_workers_of_one_role_are_compared() -> None:
    fleet = SeenFleet([1.0, 4.0])
    fleet.workers[1] = worker("decode:0", "decode")
    for _ in range(20):
        fleet.second((8, 128), (8, 0))
    assert fleet.told == [(1.0, 1.0)] * 2


def test_what_gets_nothing_to_do_counts_as_fast_again() -> None:
    fleet = SeenFleet([1.0, 1.0, 4.0])
    for _ in range(20):
        fleet.second((8, 0), (8, 0), (8, 0))
    assert fleet.told[:2] == [(1.0, 1.0)] * 2 and fleet.told[2][1] >= 3.0
    for _ in range(int(10 * MEMORY)):
        fleet.second((8, 0), (8, 0))
    assert fleet.told == [(1.0, 1.0)] * 3


def test_a_worker_that_takes_another_role_begins_anew() -> None:
    fleet = SeenFleet([1.0, 4.0])
    for _ in range(20):
        fleet.second((8, 0), (8, 0))
    slow = fleet.workers[1]
    assert slow.pace is not FASTEST
    slow.begin_anew(0.0)
    fleet.workers = [fleet.workers[0], worker("mixed:1", "decode")]
    fleet.paces.assign(fleet.workers, fleet.now)
    assert slow.pace is FASTEST and fleet.told == [(1.0, 1.0)] * 2


def test_equal_workers_of_which_one_is_taken_for_slow_are_equal_again() -> None:
    fleet = SeenFleet([1.0, 1.0])
    fleet.workers[1].pace = WorkerPace(4.0, 4.0, 1000.0)
    for _ in range(20):
        fleet.second((8, 128), (2, 64))
    assert fleet.workers[1].pace is FASTEST


def test_what_stood_still_for_a_moment_is_not_slow() -> None:
    fleet = SeenFleet([1.0, 1.0])
    for _ in range(20):
        fleet.second((8, 128), (8, 128))
        # One step of ten milliseconds took four seconds.
        fleet.tell(1, 8, 0, 1, stands=0.0 if fleet.now != 10.0 else 4.0)
    assert fleet.told == [(1.0, 1.0)] * 2


def test_nothing_is_said_before_enough_was_seen() -> None:
    fleet = SeenFleet([1.0, 8.0])
    steps = int(0.4 * KNOWN / (8 * (BASE + ROW)))
    for number in (0, 1):
        fleet.tell(number, 1, 0, steps)
    fleet.paces.assign(fleet.workers, 1.0)
    assert fleet.told == [(1.0, 1.0)] * 2


def test_what_is_seen_of_a_worker_is_forgotten_with_it() -> None:
    fleet = SeenFleet([1.0, 1.0])
    for _ in range(5):
        fleet.second((8, 0), (8, 0))
    fleet.paces.assign(fleet.workers[:1], fleet.now)
    assert list(fleet.paces.seen) == ["mixed:0"]


@given(before=integers(2, 40), noise=lists(floats(-0.24 * PART, 0.24 * PART), min_size=2, max_size=50))
def test_a_pace_does_not_change_to_and_fro(before: int, noise: list[float]) -> None:
    """A pace that is measured with such noise changes once at most, whatever is right."""
    right, said = before * PART + random.Random(before).uniform(0.0, PART), [1.0]
    for one in noise:
        said.append(rounded(right + one, said[-1]))
    assert sum(first != second for first, second in zip(said[1:], said[2:], strict=False)) <= 1
    assert all(one >= 1.0 and one % PART == 0.0 for one in said)
