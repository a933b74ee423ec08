# SPDX-License-Identifier: Apache-2.0
"""A coarse model of topologies, to choose those that are worth a simulation: rates of whole workers, without queues,
routes or transfers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import comb, inf, prod
from operator import mul, sub

from pontil.runtime.planner.device_profile import WorkerSizes
from pontil.runtime.planner.step_costs import StepCosts, StepWork

# Workers of each kind.
Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerSplit:
    """So many workers of each kind for each role."""

    prefill: Counts
    decode: Counts
    mixed: Counts

    @property
    def by_kind(self) -> Counts:
        """Return the workers of each kind, whatever their roles."""
        return tuple(map(sum, zip(self.prefill, self.decode, self.mixed, strict=True)))


def splits(most: Sequence[int]) -> Iterator[WorkerSplit]:
    """Yield each way to share out up to so many workers of each kind, the fewest first: all for both phases, or some
    for each."""
    none = (0,) * len(most)
    for used in sorted(product(*(range(count + 1) for count in most)), key=sum):
        if any(used):
            yield WorkerSplit(none, none, used)
        for prefill in product(*(range(count + 1) for count in used)):
            if any(prefill) and prefill != used:
                yield WorkerSplit(prefill, tuple(map(sub, used, prefill)), none)


def ways(most: Sequence[int]) -> int:
    """Return a bound of the number of such splits."""
    return prod(count + 1 for count in most) + prod(comb(count + 2, 2) for count in most)


@dataclass(frozen=True, slots=True)
class MeanRequest:
    """The prompt and the answer of a request, in tokens on average, and its longest time per token in seconds."""

    prompt: float
    answer: float
    per_token: float = inf


class CoarseModel:
    """The requests per second that one worker of a profile has time for, all of one kind: of their prompts, of their
    answers, and of both."""

    def __init__(self, costs: StepCosts, sizes: WorkerSizes, request: MeanRequest) -> None:
        self.costs, self.sizes, self.request = costs, sizes, request
        self.prompts = 1.0 / self.seconds_of_prompt(sizes.step_tokens)
        rows = self.most_rows(0)
        self.answers = rows / (request.answer * self.step(rows, 0))
        self.both = 1.0 / self.seconds_of_both()

    def seconds_of_prompt(self, chunk: int) -> float:
        """Return the seconds of a prompt alone, in chunks of so many tokens."""
        whole, rest = divmod(max(1, round(self.request.prompt)), chunk)
        steps = [StepWork(0, 0, chunk, chunk * (chunk * number + chunk / 2)) for number in range(whole)]
        steps += [StepWork(0, 0, rest, rest * (chunk * whole + rest / 2))] if rest else []
        return sum(map(self.costs.step, steps))

    def step(self, rows: int, tokens: int) -> float:
        """Return the seconds of a step of so many rows in the middle of their answers, and prompt tokens beside."""
        context = self.request.prompt + self.request.answer / 2
        return self.costs.step(StepWork(rows, rows * context, tokens, tokens * self.request.prompt / 2))

    def most_rows(self, tokens: int) -> int:
        """Return the most rows whose steps keep the time per token, at least one: those that have seats and blocks."""
        blocks = (self.request.prompt + self.request.answer) / self.sizes.block_tokens + 1
        most = max(1, min(self.sizes.seats, int(self.sizes.blocks / blocks)))
        kept = [rows for rows in range(1, most + 1) if self.step(rows, tokens) <= self.request.per_token]
        return max(kept, default=1)

    def seconds_of_both(self) -> float:
        """Return the seconds of a request where a prompt's chunks are computed beside the rows that decode."""
        chunk = self.sizes.interleaved_tokens or self.sizes.step_tokens
        rows = self.most_rows(chunk)
        chunks = -(-self.request.prompt // chunk)
        beside = chunks * (self.step(rows, chunk) - self.step(rows, 0))
        return beside + self.request.answer * self.step(rows, 0) / rows


class CoarseFleet:
    """The rates of workers of several kinds under one kind of request."""

    def __init__(self, kinds: Sequence[CoarseModel]) -> None:
        self.prompts, self.answers = [one.prompts for one in kinds], [one.answers for one in kinds]
        self.both = [one.both for one in kinds]

    def rate(self, split: WorkerSplit) -> float:
        """Return the requests per second that so many workers have time for."""
        if any(split.mixed):
            return of_all(split.mixed, self.both)
        return min(of_all(split.prefill, self.prompts), of_all(split.decode, self.answers))


def of_all(workers: Counts, each: Sequence[float]) -> float:
    """Return what workers of each kind have together."""
    return sum(map(mul, workers, each), 0.0)
