# SPDX-License-Identifier: Apache-2.0
"""The time that a worker's steps lose to a process which computes on another core: by the memory's bandwidth, by
caches, and where two cores are threads of one, by its units."""

import json
import select
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import TextIO

from pontil.runtime.planner.device_profile import CompanyTimes
from pontil.runtime.planner.measuring import StepMeter
from pontil.runtime.planner.shared_cores import DECODE, HOST, PROMPT

# The other process does nothing.
REST = "rest"
# Rows of a step that decodes and their context, and so many steps of each kind.
ROWS, CONTEXT = 8, 32
STEPS = {DECODE: 24, PROMPT: 4}
ROUNDS = 5


def company_times(meter: StepMeter, have_other: Callable[[str], object]) -> CompanyTimes:
    """Measure steps of both kinds while another process does what `have_other` is told. Each is compared with what was
    measured right before, since cores are faster at one time than at another."""
    slower = defaultdict[str, list[float]](list)
    for _ in range(ROUNDS):
        for other in (DECODE, PROMPT, HOST):
            have_other(REST)
            alone = {kind: seconds_of(meter, kind) for kind in STEPS}
            have_other(other)
            for kind, seconds in alone.items():
                slower[f"{kind}_{other}"].append(seconds_of(meter, kind) / seconds)
    have_other(REST)
    return CompanyTimes(**{name: round(max(1.0, median(factors)), 4) for name, factors in slower.items()})


def seconds_of(meter: StepMeter, kind: str) -> float:
    """Return the median of the seconds of some steps of a kind."""
    if kind == PROMPT:
        return median(prompt_step(meter) for _ in range(STEPS[kind]))
    begin_rows(meter)
    made = [meter.step()[1] for _ in range(STEPS[kind])]
    meter.end()
    return median(made)


def begin_rows(meter: StepMeter) -> None:
    meter.begin(min(ROWS, meter.sizes.seats), CONTEXT, STEPS[DECODE])


def prompt_step(meter: StepMeter) -> float:
    meter.add(min(meter.sizes.step_tokens, meter.longest - 1), 1)
    seconds = 0.0
    while meter.engine.has_work:
        seconds += meter.step()[1]
    return seconds


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
        prompt_step(meter)
    elif kind == HOST:
        for number in range(100):
            json.loads(json.dumps({"choices": [{"index": 0, "text": f"token {number}"}], "usage": None}))
    else:
        meter.step()
        if not meter.engine.has_work:
            begin_rows(meter)
