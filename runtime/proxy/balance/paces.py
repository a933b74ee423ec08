# SPDX-License-Identifier: Apache-2.0
"""The paces of workers, from what their heartbeats tell of their steps (docs/decisions/165)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.routing.pace import FASTEST, WorkerPace
from pontil.runtime.proxy.routing.policy import SEAT_TOKENS

# Paces are multiples of a PART, from SLOW on: steps of one size have up to 1.4 times as many rows, and contexts of
# different lengths, so that equal workers differ as well. A pace is taken back when what is told is half a PART below
# it, so that a load is not moved to and fro, and what is NEARLY a multiple is one.
SLOW, PART, NEARLY = 2.0, 0.5, 0.1
# Most times as long that count, and seconds without a step after which nothing is known of a worker: it counts as fast
# again, and the next request shows what it takes.
MOST, IDLE = 16.0, 120.0
# Most rows that take as long as a step has without them: behind so many a slow worker is better in any case.
MOST_BASE_ROWS = 32.0


@dataclass(slots=True)
class LeastTimes:
    """The least seconds of steps of each size, with who told of them, and the least that anybody else told of."""

    least: dict[float, tuple[float, str]] = field(default_factory=dict)
    next: dict[float, float] = field(default_factory=dict)

    def add(self, worker: str, times: Mapping[float, float]) -> None:
        for rows, seconds in times.items():
            before, _ = self.least.get(rows, (inf, ""))
            if seconds < before:
                self.least[rows], seconds = (seconds, worker), before
            self.next[rows] = min(self.next.get(rows, inf), seconds)

    def times(self, worker: str, times: Mapping[float, float]) -> float:
        """Return how many times as long as others a worker takes, by the median of the sizes that anybody else made,
        the lower one of two; 1 where nobody did. Some sizes only others that are slow as well may have made."""
        ratios = sorted(seconds / self.others(worker, rows) for rows, seconds in times.items())
        known = [ratio for ratio in ratios if ratio > 0.0]
        return min(MOST, max(1.0, known[(len(known) - 1) // 2])) if known else 1.0

    def others(self, worker: str, rows: float) -> float:
        seconds, who = self.least[rows]
        return self.next[rows] if who == worker else seconds

    @property
    def base_rows(self) -> float:
        """The rows that take as long as a step has without them, by the fewest and the most rows that were told of."""
        if not self.least:
            return MOST_BASE_ROWS
        fewest, most = min(self.least), max(self.least)
        first, last = self.least[fewest][0], self.least[most][0]
        row = (last - first) / (most - fewest) if most > fewest else 0.0
        base = first - row * fewest
        return min(MOST_BASE_ROWS, max(0.0, base / row)) if row > 0.0 else MOST_BASE_ROWS


@dataclass(slots=True)
class Paces:
    """The paces of a group's workers. `stepped` has each one's steps, by incarnation, and when they became so many."""

    stepped: dict[str, tuple[int, float]] = field(default_factory=dict)

    def assign(self, workers: Sequence[RegisteredWorker], now: float) -> None:
        """Give workers their paces."""
        prompts, answers = LeastTimes(), LeastTimes()
        told = {
            one.hello.sender: (one.step_seconds(with_prompts=True), one.step_seconds(with_prompts=False))
            for one in workers
        }
        for name, (of_prompts, of_answers) in told.items():
            prompts.add(name, of_prompts)
            answers.add(name, of_answers)
        self.stepped = {one.hello.sender: self.last_step(one, now) for one in workers}
        for worker in workers:
            name = worker.hello.sender
            times = 1.0, 1.0
            if now - self.stepped[name][1] < IDLE:
                times = prompts.times(name, told[name][0]), answers.times(name, told[name][1])
            pace = paced(worker.pace, *times, answers.base_rows)
            if pace is FASTEST and worker.pace is not FASTEST:
                # It had little to do while it was slow. It is to take its part now, and not all.
                equals = [one.recent for one in workers if one.role == worker.role and one.pace is FASTEST]
                worker.recent = max(worker.recent, sum(equals) / max(1, len(equals)))
            worker.pace = pace

    def last_step(self, worker: RegisteredWorker, now: float) -> tuple[int, float]:
        steps, since = worker.counters.get("steps", 0), self.stepped.get(worker.hello.sender)
        return since if since is not None and since[0] == steps else (steps, now)


def paced(before: WorkerPace, prompts: float, steps: float, base_rows: float) -> WorkerPace:
    """Return the pace of a worker that is told to take so many times as long, where a step takes as long without any
    rows as for so many."""
    prompts, steps = rounded(prompts, before.prompts), rounded(steps, before.steps)
    if (prompts, steps) == (before.prompts, before.steps):
        return before
    if prompts == steps == 1.0:
        return FASTEST
    # A request waits for a step's rows and makes each of these wait: of two shares the base has one.
    return WorkerPace(prompts, steps, SEAT_TOKENS * base_rows / 2.0 * (steps - 1.0))


def rounded(times: float, before: float) -> float:
    """Return how many times as long a worker is said to take, where so many were measured and so many said before."""
    if before - PART / 2.0 <= times < (before + PART if before > 1.0 else SLOW):
        return before
    return whole if (whole := (times + NEARLY) // PART * PART) >= SLOW else 1.0
