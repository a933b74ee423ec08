# SPDX-License-Identifier: Apache-2.0
"""The time that a worker's steps lose to a process which computes on another core (by the memory's bandwidth, by
caches, and where two cores are threads of one, by its units) or on their own. And what they need with lent cores."""

import json
import select
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, median
from typing import Protocol, TextIO

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.planner.device_profile import CompanyTimes, LendingTimes
from pontil.runtime.planner.measuring import StepMeter
from pontil.runtime.planner.shared_cores import DECODE, HOST, PROMPT
from pontil.runtime.worker.start.loading import open_lent_cores

# The other process does nothing.
REST = "rest"
# Rows of a step that decodes and their context, tokens of a prompt, and so many steps of each kind. Few rows lose most.
ROWS, CONTEXT, CHUNK = 2, 32, 128
STEPS = {DECODE: 24, PROMPT: 4}
ROUNDS = 10
# Rows of a step that decodes, and prompt tokens of one, with lent cores. A step of two cores is as slow as the slower
# one, which more moments show.
LENT_ROWS, LENT_CHUNKS, LENT_STEPS, LENT_ROUNDS = (1, 4, 16), (16, 64, 256), 6, 12


def company_times(
    meter: StepMeter, on_other: Callable[[str], object], on_own: Callable[[str], object] | None
) -> CompanyTimes:
    """Measure steps of both kinds while a process on other cores does what it is told, and one on their own cores,
    where the meter has a clock that only the worker's time counts on."""
    factors = slowed(meter, on_other, (DECODE, PROMPT, HOST))
    if on_own is not None:
        factors |= {f"own_{name}": factor for name, factor in slowed(meter, on_own, (DECODE, PROMPT)).items()}
    return CompanyTimes(**factors)


def slowed(meter: StepMeter, have_other: Callable[[str], object], others: Sequence[str]) -> dict[str, float]:
    """Return by what steps of each kind take longer while another process does each of `others`. They are compared with
    what was measured right before, since cores are faster at one time than at another."""
    slower = defaultdict[str, list[float]](list)
    for _ in range(ROUNDS):
        for other in others:
            have_other(REST)
            alone = {kind: seconds_of(meter, kind) for kind in STEPS}
            have_other(other)
            for kind, seconds in alone.items():
                slower[f"{kind}_{other}"].append(seconds_of(meter, kind) / seconds)
    have_other(REST)
    return {name: round(max(1.0, median(factors)), 4) for name, factors in slower.items()}


def seconds_of(meter: StepMeter, kind: str) -> float:
    """Return the median of the seconds of some steps of a kind."""
    if kind == PROMPT:
        return median(prompt_step(meter, CHUNK) for _ in range(STEPS[kind]))
    begin_rows(meter)
    made = [meter.step()[1] for _ in range(STEPS[kind])]
    meter.end()
    return median(made)


def begin_rows(meter: StepMeter) -> None:
    meter.begin(min(ROWS, meter.sizes.seats), CONTEXT, STEPS[DECODE])


def prompt_step(meter: StepMeter, tokens: int) -> float:
    meter.add(min(tokens, meter.sizes.step_tokens, meter.longest - 1), 1)
    seconds = 0.0
    while meter.engine.has_work:
        seconds += meter.step()[1]
    return seconds


class Lender(Protocol):
    """The cores of a worker that computes nothing."""

    def lend(self) -> None:
        """Lend them to others."""

    def take(self) -> None:
        """Take them back."""


def lender_at(cores: Sequence[int], borrower: WorkerConfig) -> Lender | None:
    """Return these cores as a worker of the borrower's launch lends them; None where that is not possible here."""
    return open_lent_cores(replace(borrower, cores=tuple(cores)))


def lending_times(meter: StepMeter, lender: Lender | None) -> LendingTimes:
    """Measure steps with the cores of a `lender` and without, by turns and by the time that passes, as threads on lent
    cores take processor time too. The mean counts, as it does of steps."""
    if lender is None:
        return LendingTimes()
    seats, longest, steps = meter.sizes.seats, meter.sizes.step_tokens, 2 * LENT_STEPS
    rows_of_steps = [one for one in LENT_ROWS if one <= seats and meter.has_room(one, CONTEXT, steps)]
    chunks = [one for one in LENT_CHUNKS if one <= longest and meter.has_room(1, one, 1)]
    factors, clock = defaultdict[tuple[float, float], list[float]](list), meter.clock
    meter.clock = time.perf_counter
    try:
        for _ in range(LENT_ROUNDS):
            for rows in rows_of_steps:
                meter.begin(rows, CONTEXT, steps)
                factors[float(rows), 0.0].append(factor(lender, lambda: meter.step()[1], LENT_STEPS))
                meter.end()
            for tokens in chunks:
                step = partial(prompt_step, meter, tokens)
                factors[0.0, float(tokens)].append(factor(lender, step, STEPS[PROMPT]))
    finally:
        meter.clock = clock
    return LendingTimes(tuple((*size, round(min(1.0, fmean(some)), 4)) for size, some in factors.items()))


def factor(lender: Lender, step: Callable[[], float], count: int) -> float:
    """Return the factor by which lent cores change the time of a step."""
    alone = median(step() for _ in range(count))
    lender.lend()
    try:
        return median(step() for _ in range(count)) / alone
    finally:
        lender.take()


def keep_company(meter: StepMeter, told: TextIO, answers: TextIO) -> None:
    """Do what each line says until the next one comes, and say when it has begun."""
    for line in iter(told.readline, ""):
        kind = line.strip()
        meter.end()
        if kind == DECODE:
            begin_rows(meter)
        print(kind, file=answers, flush=True)
        while kind != REST and not select.select((told,), (), (), 0.0)[0]:
            work(meter, kind)
    meter.end()


def work(meter: StepMeter, kind: str) -> None:
    """Do a small piece of some kind of work."""
    if kind == PROMPT:
        prompt_step(meter, CHUNK)
    elif kind == HOST:
        for number in range(100):
            json.loads(json.dumps({"choices": [{"index": 0, "text": f"token {number}"}], "usage": None}))
    else:
        meter.step()
        if not meter.engine.has_work:
            begin_rows(meter)
