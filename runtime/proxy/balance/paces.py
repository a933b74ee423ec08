# SPDX-License-Identifier: Apache-2.0
"""The paces of workers, from what their heartbeats tell of their steps (docs/decisions/165)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from pontil.runtime.proxy.balance.fitted_costs import DecayingRate, FittedCosts
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.routing.pace import FASTEST, WorkerPace
from pontil.runtime.proxy.routing.policy import SEAT_TOKENS

# Seconds over which a worker's steps are averaged, and of how many it takes for half of what they say: one that gets
# nothing more, since it is slow, counts as fast again after some minutes, and shows anew what it takes.
MEMORY, PRIOR = 30.0, 0.5
# Fewest seconds of steps after which it is known what such take.
KNOWN = 0.5
# Paces are multiples of a PART, from 1.5 on: equal workers differ by less, by what their requests are. One is taken
# back when what is measured is half a PART below it, so that a load is not moved to and fro.
PART = 0.5
# Prompt tokens of a step that is mostly of prompts.
MOSTLY = 16
# Most times as long as expected that steps count: what stood still for a moment is not slow.
MOST = 8.0
# Most rows that take as long as a step has without them: behind so many a slow worker is better in any case.
MOST_BASE_ROWS = 32.0


def recent() -> DecayingRate:
    return DecayingRate(MEMORY)


@dataclass(slots=True)
class SeenTimes:
    """The seconds that steps took, and those that the fastest would take."""

    taken: DecayingRate = field(default_factory=recent)
    expected: DecayingRate = field(default_factory=recent)

    def add(self, now: float, taken: float, expected: float) -> None:
        self.taken.add(now, taken)
        self.expected.add(now, expected)

    def ratio(self, now: float) -> float:
        """Return how many times as long as expected they took; infinite while too little was seen of late."""
        taken, expected = self.taken.left(now), self.expected.left(now)
        return taken / expected if taken >= KNOWN and expected > 0.0 else inf

    def times(self, now: float, least: float, usual: float) -> float:
        """Return how many times as long they took as those of the `least` ratio: as much as they tell beside what is
        `usual` of them."""
        return (self.taken.left(now) / least + PRIOR * usual) / (self.expected.left(now) + PRIOR)


@dataclass(slots=True)
class SeenSteps:
    """The steps of a worker in one role: those with prompts, and those that only drew tokens of answers."""

    role: str
    prompts: SeenTimes = field(default_factory=SeenTimes)
    answers: SeenTimes = field(default_factory=SeenTimes)

    def ratios(self, now: float) -> tuple[float, float]:
        return self.prompts.ratio(now), self.answers.ratio(now)

    def times(self, now: float, least: tuple[float, float]) -> tuple[float, float]:
        """Return how many times as long as those of the least ratios prompts take, and steps of answers. Of what was
        seen little it is usual that it takes as long as the other."""
        prompts = self.prompts.times(now, least[0], self.answers.times(now, least[1], 1.0))
        return prompts, self.answers.times(now, least[1], self.prompts.times(now, least[0], 1.0))


@dataclass(slots=True)
class Paces:
    """The paces of a group's workers. What is seen of each, by incarnation, is forgotten with it. `costs` are those of
    the fastest: of several speeds at once no line goes through what steps took."""

    seen: dict[str, SeenSteps] = field(default_factory=dict)
    costs: FittedCosts = field(default_factory=FittedCosts)

    def learn(self, worker: RegisteredWorker, now: float, steps: int, seconds: float, rows: int, prompt: int) -> None:
        """Learn from steps of a worker, in which so many tokens were drawn and prompt tokens computed. What few of
        these take beside answers counts as the answers' until it is known what these take."""
        if steps <= 0:
            return
        if prompt < MOSTLY * steps and self.costs.decode.seconds < KNOWN:
            prompt = 0
        if (expected := self.costs.expected(steps, rows, prompt, KNOWN)) > 0.0:
            if worker.hello.sender not in self.seen or self.seen[worker.hello.sender].role != worker.role:
                self.seen[worker.hello.sender] = SeenSteps(worker.role)
            seen, seconds = self.seen[worker.hello.sender], min(seconds, MOST * expected)
            (seen.prompts if prompt else seen.answers).add(now, seconds, expected)
        if (worker.pace.prompts if prompt else worker.pace.steps) == 1.0:
            self.costs.add(steps, seconds, rows, prompt)

    def assign(self, workers: Sequence[RegisteredWorker], now: float) -> None:
        """Give workers their paces, each among those of its role."""
        roles = {worker.hello.sender: worker.role for worker in workers}
        self.seen = {name: seen for name, seen in self.seen.items() if roles.get(name) == seen.role}
        least = {role: self.least(role, now) for role in set(roles.values())}
        for worker in workers:
            seen = self.seen.get(worker.hello.sender)
            # Nobody knows that one of which nothing was seen is slow.
            times = (1.0, 1.0) if seen is None else seen.times(now, least[worker.role])
            pace = paced(worker.pace, *times, self.costs)
            if pace is not worker.pace:
                worker.pace = pace

    def least(self, role: str, now: float) -> tuple[float, float]:
        """Return the least ratios of a role; 1 where none is known."""
        ratios = [seen.ratios(now) for seen in self.seen.values() if seen.role == role] or [(inf, inf)]
        prompts, answers = (min(known) for known in zip(*ratios, strict=True))
        return prompts if prompts < inf else 1.0, answers if answers < inf else 1.0


def paced(before: WorkerPace, prompts: float, steps: float, costs: FittedCosts) -> WorkerPace:
    """Return the pace of a worker that was measured to take so many times as long as the fastest."""
    prompts, steps = rounded(prompts, before.prompts), rounded(steps, before.steps)
    if (prompts, steps) == (before.prompts, before.steps):
        return before
    base, row = costs.line
    # A request waits for a step's rows and makes each of these wait: of two shares the base has one.
    behind = SEAT_TOKENS * min(MOST_BASE_ROWS, base / row if row else inf) / 2.0 * (steps - 1.0)
    return FASTEST if prompts == steps == 1.0 else WorkerPace(prompts, steps, behind)


def rounded(times: float, before: float) -> float:
    """Return how many times as long a worker is said to take, where so many were measured and so many said before."""
    if before - PART / 2.0 <= times < before + PART:
        return before
    return max(1.0, times // PART * PART)
