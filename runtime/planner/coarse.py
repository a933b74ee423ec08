# SPDX-License-Identifier: Apache-2.0
"""A coarse model of topologies, to choose those that are worth a simulation: rates of whole workers, without queues,
routes or transfers."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from pontil.runtime.planner.device_profile import WorkerSizes
from pontil.runtime.planner.planned_site import Disagg, PlannedTopology
from pontil.runtime.planner.step_costs import StepCosts, StepWork


def topologies(most_workers: int, disagg: Disagg) -> Iterator[PlannedTopology]:
    """Yield each way to share out up to so many workers: all for both phases, or some for each."""
    for workers in range(1, most_workers + 1):
        yield PlannedTopology(0, 0, workers, disagg)
        for prefill in range(1, workers):
            yield PlannedTopology(prefill, workers - prefill, 0, disagg)


@dataclass(frozen=True, slots=True)
class MeanRequest:
    """The prompt and the answer of a request, in tokens on average, and its longest time per token in seconds."""

    prompt: float
    answer: float
    per_token: float = inf


class CoarseModel:
    """The rates of one profile's workers under one kind of request."""

    def __init__(self, costs: StepCosts, sizes: WorkerSizes, request: MeanRequest) -> None:
        self.costs, self.sizes, self.request = costs, sizes, request
        self.prompt_seconds = self.seconds_of_prompt(sizes.step_tokens)

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

    def rate(self, topology: PlannedTopology) -> float:
        """Return the requests per second that so many workers have time for."""
        if topology.mixed:
            # A prompt's chunks are computed beside the rows that decode.
            chunk = self.sizes.interleaved_tokens or self.sizes.step_tokens
            rows = self.most_rows(chunk)
            chunks = -(-self.request.prompt // chunk)
            beside = chunks * (self.step(rows, chunk) - self.step(rows, 0))
            return topology.mixed / (beside + self.request.answer * self.step(rows, 0) / rows)
        rows = self.most_rows(0)
        decoding = self.request.answer * self.step(rows, 0) / rows
        return min(topology.prefill / self.prompt_seconds, topology.decode / decoding)
