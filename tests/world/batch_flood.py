# SPDX-License-Identifier: Apache-2.0
"""A site of the world under a batch of many lines beside the requests of those who wait: what the lines cost these, and
how much of the seats' idle time they use."""

from collections import Counter
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from batch_clients import BatchClient, billed
from engine_process import TinyModel
from goodput import Trial, TrialTimes, quiet_folder, site_of
from request_connections import Dialer
from virtual_time import SeededWorld

# Tokens of a line's answer, at least and at most.
ANSWERS = (10, 60)
# Virtual seconds from the batch to the first request; between two looks at the seats; and for the batch to end.
BEFORE, LOOK, ENDS_WITHIN = 5.0, 0.01, 50_000.0


@dataclass(frozen=True, slots=True)
class FloodTimes(TrialTimes):
    """The outcome of a trial beside a batch: the `idle` seats at all looks, from the first request to the last answer,
    those of them that lines had, and how many of its lines were answered and billed once."""

    idle: int
    used: int
    once: int

    @property
    def first_p99(self) -> float:
        return sorted(self.first)[ceil(0.99 * len(self.first)) - 1]


class FloodClient(BatchClient):
    """The client of a batch of so many lines, all of which are right."""

    def __init__(self, world: SeededWorld, dialer: Dialer, lines: int) -> None:
        super().__init__(world, dialer, lambda: None)
        self.lines = lines

    @property
    def body(self) -> dict[str, Any]:
        def params(number: int) -> dict[str, Any]:
            turn = {"role": "user", "content": f"line {number} of many"}
            return {"max_tokens": self.chance.randint(*ANSWERS), "messages": [turn], "ignore_eos": True}

        return {"requests": [{"custom_id": f"l{n}", "params": params(n)} for n in range(self.lines)]}


class FloodedTrial(Trial):
    """One site under requests at a rate, beside a batch of so many lines: more than are answered meanwhile."""

    def __init__(self, ratio: str, model: TinyModel, folder: Path, requests: int, seed: int, lines: int) -> None:
        super().__init__(site_of(ratio), model, folder, requests, seed)
        self.folder = folder
        self.batch = FloodClient(self.world, Dialer(self.world, self.find_proxy), lines)
        self.idle = self.used = 0

    def before(self) -> float:
        if self.batch.lines:
            self.batch.make()
        self.world.after(BEFORE, self.look)
        return BEFORE

    def look(self) -> None:
        """Count the seats, of workers whose seats lines may have."""
        if not self.waiting:
            return
        for worker in self.site.workers:
            assert worker.worker is not None
            queues = worker.worker.machine.scheduler.queues
            if not worker.name.startswith("prefill"):
                self.idle += queues.max_num_seqs - queues.seats.taken
                self.used += queues.seats.lent
        self.world.after(LOOK, self.look)

    def times(self) -> FloodTimes:
        """Let the batch end too."""
        alone, world, batch = super().times(), self.world, self.batch
        until = world.now() + ENDS_WITHIN
        if batch.lines:
            assert batch.results is None, "the batch ended before the requests did: it needs more lines"
            world.run(lambda: batch.results is not None or world.time > until)
        expected = {f"{batch.name}-{n + 1}": 1 for n in range(batch.lines)}
        bills = billed(self.folder / "usage", f"{batch.name}-") if batch.lines else Counter()
        told = Counter({(f"l{n}", "succeeded"): 1 for n in range(batch.lines)})
        is_right = bills == expected and (batch.results or Counter()) == told
        return FloodTimes(
            alone.requests, alone.between, alone.first, list(world.violations), self.idle, self.used,
            batch.lines if is_right else len(bills & Counter(expected)) - 1,
        )  # fmt: skip


def flooded(ratio: str, model: TinyModel, rate: float, requests: int, seed: int, lines: int) -> FloodTimes:
    """Run one trial; without lines there is no batch."""
    with quiet_folder() as folder:
        found = FloodedTrial(ratio, model, folder, requests, seed, lines).run(rate)
        assert isinstance(found, FloodTimes)
        return found
