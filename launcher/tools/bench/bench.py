# SPDX-License-Identifier: Apache-2.0
"""A bench as a whole: its loads on one server, or on two in turn."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.tools.bench.bench_run import BenchRun, Load, Outcomes
from pontil.launcher.tools.bench.figures import Figures, Limits, figures_of
from pontil.launcher.tools.bench.questions import Question
from pontil.launcher.tools.bench.stream_client import BenchTarget

SHOWN_FAILURES = 3

# Makes the questions of a run from its seed.
MakeQuestions = Callable[[int], Iterator[Question]]
# The search ends when the highest good rate and the lowest bad one are so close, and after so many trials.
CLOSE = 1.1
MOST_TRIALS = 16


def highest_rate(start: float, keeps_limits: Callable[[float], bool]) -> float | None:
    """Return the highest rate, within a tenth, at which `keeps_limits` says yes; None if it never does. The first
    trials double or halve the rate; those after them halve the distance, on a scale of ratios."""
    good: float | None = None
    bad: float | None = None
    rate = start
    for _ in range(MOST_TRIALS):
        # The rate of a trial is the one that is told of it.
        rate = round(rate, 4)
        if keeps_limits(rate):
            good = rate
        else:
            bad = rate
        if good is not None and bad is not None and bad / good <= CLOSE:
            break
        if good is None:
            rate /= 2
        elif bad is None:
            rate *= 2
        else:
            rate = (good * bad) ** 0.5
    return good


@dataclass(slots=True)
class LoadBench:
    """The loads, and all that they have in common. A run has `requests` requests, or `per_stream` for each stream;
    another run sends other prompts. `raw` is a file to which each request's figures are appended. `quiet` leaves the
    progress bar out."""

    targets: dict[str, BenchTarget]
    questions: MakeQuestions
    limits: Limits
    requests: int | None = None
    per_stream: int = 4
    timeout: float = 600.0
    seed: int = 0
    raw: Path | None = None
    quiet: bool = False
    rows: list[Figures] = field(default_factory=list)
    runs: int = 0

    def warm_up(self) -> None:
        """Send one request to each server. Raises LaunchError if it fails, with the server's reason."""
        for name, target in self.targets.items():
            outcomes = asyncio.run(BenchRun(target, self.questions(self.seed * 100_003), 1, self.timeout).run(Load(1)))
            if outcomes.failures:
                raise LaunchError(f"a first request to {name} at {target.url} failed: {outcomes.failures[0]}")

    def measure(self, load: Load) -> list[Figures]:
        """Do one run of a load on each server, with the same questions, and return their figures."""
        self.runs += 1
        return [self.run(name, target, load) for name, target in self.targets.items()]

    def run(self, name: str, target: BenchTarget, load: Load) -> Figures:
        seed = self.seed * 100_003 + self.runs
        count = self.requests or self.per_stream * (load.concurrency or 1)
        label, hidden = f"{name}, {load.name}".ljust(32), self.quiet or not sys.stderr.isatty()
        with click.progressbar(length=count, label=label, file=sys.stderr, hidden=hidden) as bar:
            run = BenchRun(target, self.questions(seed), count, self.timeout, lambda: bar.update(1))
            outcomes = asyncio.run(run.run(load, seed))
        figures = {"server": name, "load": load.name} | load.fields | figures_of(outcomes, self.limits)
        for reason in outcomes.failures[:SHOWN_FAILURES]:
            click.echo(f"failed: {reason}", err=True)
        self.keep(outcomes, {"server": name} | load.fields)
        self.rows.append(figures)
        return figures

    def keep(self, outcomes: Outcomes, place: Figures) -> None:
        """Append a run to the raw file. Raises LaunchError."""
        lines = [asdict(timing) | place for timing in outcomes.timings]
        lines += [{"failure": reason} | place for reason in outcomes.failures]
        if self.raw is not None:
            try:
                with self.raw.open("a") as file:
                    file.writelines(json.dumps(line) + "\n" for line in lines)
            except OSError as error:
                raise LaunchError(f"--raw {self.raw} cannot be written: {error}") from None

    def search(self, start: float, share: float) -> Figures:
        """Return the highest request rate at which so many of the first server's requests keep their limits, by a
        search from `start`."""

        def keeps_limits(rate: float) -> bool:
            return bool(self.measure(Load(request_rate=rate))[0]["kept_share"] >= share)

        name = next(iter(self.targets))
        return {"server": name, "highest_request_rate": highest_rate(start, keeps_limits), "share": share} | {
            f"{field}_limit_ms": value for field, value in asdict(self.limits).items() if value is not None
        }
