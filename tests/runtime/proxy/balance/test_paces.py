# SPDX-License-Identifier: Apache-2.0
"""Workers that are slow beside others are known to be so, and equal ones are not."""

import random
from dataclasses import replace

import pytest
from effort import examples
from fleet_proxy import hello_of
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, lists, tuples

from pontil.runtime.engine.sequences.batch import Span
from pontil.runtime.proxy.balance.paces import IDLE, MOST, MOST_BASE_ROWS, PART, SLOW, LeastTimes, Paces, rounded
from pontil.runtime.proxy.fleet.registered_worker import Contact, RegisteredWorker
from pontil.runtime.proxy.routing.pace import FASTEST
from pontil.runtime.proxy.routing.policy import SEAT_TOKENS
from pontil.runtime.worker.process.step_times import KNOWN, MeanStepTimes

BASE, ROW, TOKEN = 0.01, 0.001, 0.0005
STEPS = lists(tuples(integers(0, 1), integers(1, 64), integers(0, 256), integers(1, 2 * KNOWN)), max_size=40)


def spans_of(rows: int, prompt: int) -> list[Span]:
    """The spans of a step with so many answers, and a part of a prompt. They have no sequences, as nobody asks."""
    return [Span(None, 0, count) for count in [1] * rows + [prompt] * (prompt > 1)]  # type: ignore[arg-type]


class SteppingFleet:
    """Workers that take so many times as long each, and tell of their steps as real ones do."""

    def __init__(self, times: list[float], roles: str = "mixed") -> None:
        self.times, self.steps = times, [MeanStepTimes() for _ in times]
        self.workers = [
            RegisteredWorker(
                replace(hello_of(0, role), name=f"{role}:{number}", sender=f"{role}:{number}"), Contact(0.0)
            )
            for number, role in enumerate((roles.split() * len(times))[: len(times)])
        ]
        self.paces, self.now = Paces(), 0.0

    def step(self, number: int, rows: int, prompt: int = 0, count: int = KNOWN, stands: float = 0.0) -> None:
        """Have a worker make so many steps, each with so many rows and prompt tokens."""
        for _ in range(count):
            seconds = self.times[number] * (BASE + ROW * rows + TOKEN * prompt) + stands
            self.steps[number].add(spans_of(rows, prompt), seconds)
        worker = self.workers[number]
        worker.gauges = self.steps[number].gauges()
        worker.counters = {"steps": worker.counters.get("steps", 0) + count}

    def look(self, seconds: float = 1.0) -> list[tuple[float, float]]:
        """Have the proxy look so many seconds later; return each pace, for prompts and answers."""
        self.now += seconds
        self.paces.assign(self.workers, self.now)
        return [(one.pace.prompts, one.pace.steps) for one in self.workers]


@settings(max_examples=examples(100, 1000))
@given(steps=STEPS)
def test_equal_workers_are_as_fast_as_each_other_whatever_they_do(steps: list[tuple[int, int, int, int]]) -> None:
    fleet = SteppingFleet([1.0, 1.0])
    for number, rows, prompt, count in steps:
        fleet.step(number, rows, prompt, count)
        fleet.look()
        assert all(one.pace is FASTEST for one in fleet.workers)


@settings(max_examples=examples(50, 500))
@given(steps=STEPS, times=floats(3.0, 8.0), slow_has=booleans())
def test_a_slow_worker_is_known_once_it_made_what_another_made(
    steps: list[tuple[int, int, int, int]], times: float, slow_has: bool
) -> None:
    fleet = SteppingFleet([1.0, times])
    for number, rows, prompt, count in steps:
        fleet.step(number, rows, prompt, count)
        assert fleet.look()[0] == (1.0, 1.0)
    for number in (0, 1):
        fleet.step(number, 4, count=2 * KNOWN)
    fast, slow = fleet.look()
    assert fast == (1.0, 1.0) and SLOW <= slow[1] <= 1.1 * times


def test_paces_are_those_of_prompts_and_of_answers_and_a_load_has_them() -> None:
    fleet = SteppingFleet([1.0, 4.0])
    for number in (0, 1):
        fleet.step(number, 0, 256)
        fleet.step(number, 1)
    assert fleet.look() == [(1.0, 1.0), (4.0, 4.0)]
    worker = fleet.workers[1]
    worker.recent = 100.0
    assert worker.load.pace is worker.pace and worker.load.recent == 400
    # Steps of one row were told of only, so that rows seem to cost nothing.
    assert worker.pace.behind == SEAT_TOKENS * MOST_BASE_ROWS / 2 * 3.0


def test_workers_of_which_one_only_prefills_are_compared_by_prompts() -> None:
    """A prefill worker hardly ever decodes, and a decode worker hardly ever computes a prompt."""
    fleet = SteppingFleet([1.0, 4.0, 4.0], "prefill prefill decode")
    fleet.step(0, 0, 256)
    fleet.step(1, 0, 256)
    fleet.step(2, 8)
    assert fleet.look() == [(1.0, 1.0), (4.0, 1.0), (1.0, 1.0)]


def test_two_slow_workers_are_slow_though_some_steps_only_they_made() -> None:
    fleet = SteppingFleet([1.0, 4.0, 4.0])
    for number in range(3):
        for rows in (1, 2, 4):
            fleet.step(number, rows)
    for number in (1, 2):
        fleet.step(number, 8)
    assert [steps for _, steps in fleet.look()] == [1.0, 4.0, 4.0]


def test_a_slow_worker_with_nothing_to_do_counts_as_fast_until_it_has_made_a_step() -> None:
    fleet = SteppingFleet([1.0, 4.0])
    for number in (0, 1):
        fleet.step(number, 1)
    assert fleet.look()[1] == (1.0, 4.0)
    assert fleet.look(0.9 * IDLE)[1] == (1.0, 4.0)
    fleet.workers[0].recent = 5000.0
    assert fleet.look(0.2 * IDLE) == [(1.0, 1.0)] * 2
    # It takes its part of what comes next, and not all.
    assert fleet.workers[1].recent == 5000.0
    fleet.step(1, 1, count=1)
    assert fleet.look()[1] == (1.0, 4.0)


def test_a_worker_that_became_slow_or_fast_is_seen() -> None:
    fleet = SteppingFleet([1.0, 1.0])
    for times, told in ((1.0, 1.0), (4.0, 4.0), (1.0, 1.0)):
        fleet.times[1] = times
        for number in (0, 1):
            fleet.step(number, 2, count=200)
        assert fleet.look()[1] == (1.0, told)


@pytest.mark.parametrize("stands", [0.1, 4.0, 60.0])
def test_what_stood_still_for_a_moment_is_not_slow(stands: float) -> None:
    fleet = SteppingFleet([1.0, 1.0])
    for number in (0, 1):
        fleet.step(number, 8, count=100)
    fleet.step(1, 8, count=1, stands=stands)
    assert fleet.look() == [(1.0, 1.0)] * 2


def test_nothing_is_said_before_enough_was_seen() -> None:
    fleet = SteppingFleet([1.0, 8.0])
    fleet.step(0, 1)
    fleet.step(1, 1, count=KNOWN - 1)
    assert fleet.look() == [(1.0, 1.0)] * 2
    fleet.step(1, 1, count=1)
    assert fleet.look() == [(1.0, 1.0), (1.0, 8.0)]


def test_a_stuck_clock_is_no_pace() -> None:
    """A worker that says it takes no time makes nobody infinitely slow."""
    fleet = SteppingFleet([0.0, 1.0, 1000.0])
    for number in range(3):
        fleet.step(number, 1)
    assert fleet.look() == [(1.0, 1.0), (1.0, 1.0), (1.0, MOST)]


def test_what_is_known_of_a_worker_goes_with_it() -> None:
    fleet = SteppingFleet([1.0, 4.0])
    for number in (0, 1):
        fleet.step(number, 1)
    assert fleet.look()[1] == (1.0, 4.0)
    del fleet.workers[0]
    assert fleet.look() == [(1.0, 1.0)] and list(fleet.paces.stepped) == ["mixed:1"]


def test_guesses_are_rows_and_no_prompts() -> None:
    times = MeanStepTimes()
    for _ in range(KNOWN):
        times.add([Span(None, 7, 4, (1, 2, 3))], 0.01)  # type: ignore[arg-type]
    assert times.gauges() == {"decode_step_microseconds_4": 10_000}


@pytest.mark.parametrize(
    ("base", "row", "rows", "expected"),
    [
        (0.01, 0.001, (1, 8), 10.0),
        (0.01, 0.0, (1, 8), MOST_BASE_ROWS),
        (0.0, 0.001, (1, 8), 0.0),
        (0.01, 0.001, (4,), 32.0),
    ],
)
def test_the_rows_of_a_base_are_those_of_a_line(
    base: float, row: float, rows: tuple[int, ...], expected: float
) -> None:
    least = LeastTimes()
    least.add("one", {count: base + row * count for count in rows})
    assert least.base_rows == pytest.approx(expected)
    assert LeastTimes().base_rows == MOST_BASE_ROWS


@given(before=integers(4, 40), noise=lists(floats(-0.24 * PART, 0.24 * PART), min_size=2, max_size=50))
def test_a_pace_does_not_change_to_and_fro(before: int, noise: list[float]) -> None:
    """A pace that is measured with such noise changes once at most, whatever is right."""
    right, said = before * PART + random.Random(before).uniform(0.0, PART), [1.0]
    for one in noise:
        said.append(rounded(right + one, said[-1]))
    assert sum(first != second for first, second in zip(said[1:], said[2:], strict=False)) <= 1
    assert all(one == 1.0 or (one >= SLOW and one % PART == 0.0) for one in said)
