# SPDX-License-Identifier: Apache-2.0
"""Loads that shift, on sites whose roles are fixed and on one whose roles follow the load, in virtual time."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from recorded_profile import small_profile

from pontil.runtime.planner.device_profile import DeviceProfile, StepTimes
from pontil.runtime.planner.planned_site import Disagg, PlannedSite, PlannedTopology, planned_model
from pontil.runtime.planner.trial import Asked, PlannedLoad, PlannedRequest, PlannedTrial

# Workers of a site, those of them that compute prompts before roles follow, and the limits of its requests in
# milliseconds.
WORKERS, FIRST, TTFT, TPOT = 4, 2, 8_000.0, 800.0
# The part of what the best split can do that is asked for.
ASKED = (0.5, 0.75)
# Milliseconds of a step that decodes and of its rows, and of one with prompts and their tokens, and the most of these:
# a slow device has few steps and tokens to simulate, which take most of a trial. As on others the limit for each token
# is twice what a step takes without rows, and answers have tokens enough for it to be a mean.
BASE, ROW, START, TOKEN, STEP_TOKENS = 400.0, 32.0, 80.0, 8.0, 128
# Requests of a steady load that are enough.
REQUESTS = 240
# Factor on what a split has time for, above which it keeps no limits: phases begin and end, and rates are means.
LOOSE = 1.2
# The tokens of which prompts are made.
WORDS = range(100, 40_000)
# Tokens of prompts and answers while prompts are asked for and while answers are, and those of steady loads.
PROMPTS, ANSWERS = (256, 8), (16, 32)
STEADY_PROMPTS, STEADY_ANSWERS = (64, 128, 256), (8, 16, 32)


@dataclass(frozen=True, slots=True)
class Phase:
    """So many seconds of requests, of about so many tokens each, at a rate."""

    seconds: float
    rate: float
    prompt: int
    answer: int


def slow_profile() -> DeviceProfile:
    """Return a profile whose steps take 400 ms and 32 ms for each row that decodes, or 80 ms and 8 ms for each prompt
    token, whatever they read."""
    small = small_profile(seats=32, step_tokens=STEP_TOKENS, interleaved_tokens=0, block_tokens=64, blocks=256)
    decode = ((float(rows), 0.0, 0.0, 0.0, BASE + ROW * rows) for rows in (1, 8, 32))
    prompts = ((0.0, 0.0, float(tokens), 0.0, START + TOKEN * tokens) for tokens in (8, 32, STEP_TOKENS))
    return DeviceProfile(small.about, small.sizes, StepTimes((*decode, *prompts), small.times.pulls), small.host)


class ShiftingTrial(PlannedTrial):
    """One phase after the other on a site, each a Poisson process. Equal seeds ask equal things at equal times. It ends
    when it can no longer keep more than a share `to_beat` of its requests."""

    def __init__(self, site: PlannedSite, phases: Sequence[Phase], seed: int, to_beat: float) -> None:
        chance = random.Random(seed)
        self.moments = list(moments(phases, chance))
        load = PlannedLoad(len(self.moments), rate=1.0, seed=seed)
        super().__init__(site, load, (asked(phase, chance) for _, phase in self.moments))
        self.kept = self.ended = 0
        self.most_missed = len(self.moments) * (1.0 - to_beat)

    def end(self, times: PlannedRequest, failure: str | None) -> None:
        super().end(times, failure)
        self.ended += 1
        self.kept += kept(times)
        if self.is_beaten:
            self.running = 0

    @property
    def is_beaten(self) -> bool:
        return self.ended - self.kept > self.most_missed

    def send_at_moments(self, rate: float) -> None:
        for due, _ in self.moments:
            self.world.at(self.began + due, self.send_next)


def moments(phases: Sequence[Phase], chance: random.Random) -> Iterator[tuple[float, Phase]]:
    begin = 0.0
    for phase in phases:
        due = chance.expovariate(phase.rate)
        while due < phase.seconds:
            yield begin + due, phase
            due += chance.expovariate(phase.rate)
        begin += phase.seconds


def asked(phase: Phase, chance: random.Random) -> Asked:
    """Return a prompt and the tokens of its answer, each from half to one and a half of the phase's."""
    prompt, answer = (max(1, round(mean * chance.uniform(0.5, 1.5))) for mean in (phase.prompt, phase.answer))
    return chance.choices(WORDS, k=prompt), answer


@dataclass(frozen=True, slots=True)
class Balanced:
    """The outcome: the share of requests that kept both limits, the requests that failed, the role changes with their
    times, and whether it ended early: the share is that of requests until then."""

    share: float
    failures: int
    changes: list[tuple[float, str, str]]
    beaten: bool = False


def kept(one: PlannedRequest) -> bool:
    if one.failure is not None:
        return False
    first, last = one.arrivals[0], one.arrivals[-1]
    return first - one.sent <= TTFT / 1e3 and (last - first) / max(1, one.tokens - 1) <= TPOT / 1e3


def outcome(
    prefill: int, phases: Sequence[Phase], seed: int, *, balance: bool, disagg: Disagg = "auto", to_beat: float = 0.0
) -> Balanced:
    """Run a load on so many prefill workers, the others decode; where they `balance`, these are the first roles. End
    when no share above `to_beat` can come of it; 0: never."""
    options: dict[str, Any] = {"ttft_limit": TTFT, "tpot_limit": TPOT, "balance": "auto" if balance else "none"}
    site = PlannedSite(PlannedTopology(prefill, WORKERS - prefill, 0, disagg), MODEL.get(), seed, options)
    trial = ShiftingTrial(site, phases, seed, to_beat)
    report = trial.run()
    assert not site.world.failures, site.world.failures
    changes = [(round(at - trial.began, 2), name, role) for at, name, role in site.roles.made]
    failures = 0 if trial.is_beaten else sum(one.failure is not None for one in report.requests)
    share = trial.kept / max(1, trial.ended if trial.is_beaten else len(report.requests))
    site.close()
    return Balanced(round(share, 4), failures, changes, trial.is_beaten)


class KeptModel:
    """The model of `slow_profile`, made once: its grammars take a while."""

    def __init__(self) -> None:
        self.made: Any = None

    def get(self) -> Any:
        self.made = self.made or planned_model(slow_profile())
        return self.made


MODEL = KeptModel()


def capacity(prompt: int, answer: int, prefill: int) -> float:
    """Return the requests per second that a split has time for, within the limit per token."""
    computing = (START * ceil(prompt / STEP_TOKENS) + TOKEN * prompt) / 1e3
    return min(prefill / computing, drawn(answer, prefill))


def drawn(answer: int, prefill: int) -> float:
    """Return the answers per second that a split has time for, within the limit per token."""
    return (WORKERS - prefill) * (TPOT - BASE) / ROW / (answer * TPOT / 1e3)


def likeliest(phases: Sequence[Phase]) -> list[int]:
    """Return the counts of prefill workers, from the likeliest to be the best on: the one that has time for most of its
    worst phase, or, where phases differ, fewest of them, as decode workers help with prompts."""
    if len({(phase.prompt, phase.answer) for phase in phases}) > 1:
        return list(range(1, WORKERS))

    def worst(prefill: int) -> float:
        return min(capacity(phase.prompt, phase.answer, prefill) / phase.rate for phase in phases)

    return sorted(range(1, WORKERS), key=worst, reverse=True)


def most_kept(prefill: int, phases: Sequence[Phase]) -> float:
    """Return a share of requests that a split does not exceed: those of whose answers its decode workers have time for
    `LOOSE` times as many. Prompts are no bound, as these workers help to compute them."""
    asked = sum(phase.rate * phase.seconds for phase in phases)
    able = (min(phase.rate, LOOSE * drawn(phase.answer, prefill)) * phase.seconds for phase in phases)
    return sum(able) / asked


def best_rate(prompt: int, answer: int) -> float:
    return max(capacity(prompt, answer, prefill) for prefill in range(1, WORKERS))


def shifting(seed: int, seconds: float) -> list[Phase]:
    """Return phases of so many seconds of prompts, answers and prompts again, or the other way round: each a good part
    of what the best split for it can do."""
    chance = random.Random(f"shift {seed}")
    prompts, answers = (
        Phase(seconds, chance.uniform(*ASKED) * best_rate(*lengths), *lengths) for lengths in (PROMPTS, ANSWERS)
    )
    return [prompts, answers, prompts] if seed % 2 else [answers, prompts, answers]


def steady(seed: int, seconds: float) -> list[Phase]:
    """Return one load of some kind for all the time, for which some split is the best: the fewer requests it has in a
    second the longer, from one to two phases of so many seconds."""
    chance = random.Random(f"steady {seed}")
    lengths = chance.choice(STEADY_PROMPTS), chance.choice(STEADY_ANSWERS)
    rate = chance.uniform(*ASKED) * best_rate(*lengths)
    return [Phase(max(seconds, min(2 * seconds, REQUESTS / rate)), rate, *lengths)]


def kind_of(phases: Sequence[Phase]) -> str:
    """Return the kind of a load: the lengths of its phases, and the third of `ASKED` in which the rate of each is."""
    least, most = ASKED

    def third(phase: Phase) -> int:
        return int(3 * (phase.rate / best_rate(phase.prompt, phase.answer) - least) / (most - least))

    return " ".join(f"{phase.prompt}/{phase.answer}/{third(phase)}" for phase in phases)
