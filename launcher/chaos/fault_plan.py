# SPDX-License-Identifier: Apache-2.0
"""The plan of faults: a pure function of the seed, the minutes and the launch, so that a run can be repeated."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

FAULTS = KILL, STOP, SLOW, CUT, FILL = ("kill", "stop", "slow", "cut", "fill")
# A stop that is shorter than the silence after which a process is killed, and one that is longer.
SHORT_STOP, LONG_STOP = "stop (short)", "stop (long)"
VARIANTS = {KILL: (KILL,), STOP: (SHORT_STOP, LONG_STOP), SLOW: (SLOW,), CUT: (CUT,), FILL: (FILL,)}
DEADLY = (KILL, LONG_STOP)
# Roles of workers that pull KV blocks.
PULLING = ("decode", "mixed")
# Seconds from the end of a fault to the next, and from the beginning of one to a second that it overlaps.
PAUSES, LAGS = (1.5, 4.0), (0.2, 1.0)
OVERLAPS = 0.25
# Seconds that a worker is expected to take to come back; one that takes longer delays what follows.
COMES_BACK = 4.0
# Most deaths of one worker within the window of the restart policy, and how many that are below its limit.
MOST_DEATHS, SPARE_DEATHS = 3, 1
# A filesystem counts as a place of its own, which no worker is.
DISK = "disk"


@dataclass(frozen=True, slots=True)
class ChaosTarget:
    """A worker that may be disturbed."""

    name: str
    role: str
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The launch to plan for: the terms of its supervisor, and the small filesystems that it writes to, by a folder on
    each."""

    silence: float
    restart_attempts: int
    restart_window: float
    workers: tuple[ChaosTarget, ...]
    folders: tuple[str, ...] = ()

    @property
    def deaths(self) -> int:
        """The deaths of one worker that a window may have."""
        least = min(self.restart_attempts, 1)
        return max(least, min(MOST_DEATHS, self.restart_attempts - SPARE_DEATHS))


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault that begins `at` seconds after the load, or as soon after that as the launch is whole. The `target` is a
    worker or a folder."""

    at: float
    variant: str
    target: str
    role: str
    seconds: float
    rank: int = 0

    @property
    def fault(self) -> str:
        return next(fault for fault, variants in VARIANTS.items() if self.variant in variants)

    @property
    def is_deadly(self) -> bool:
        return self.variant in DEADLY

    @property
    def free_at(self) -> float:
        """The time at which the launch should be whole again."""
        return self.at + self.seconds + (COMES_BACK if self.is_deadly else 0.0)

    def describe(self) -> str:
        where = self.target + (f" rank {self.rank}" if self.rank else "")
        lasts = "" if self.variant == KILL else f" for {self.seconds:.1f} s"
        return f"{self.at:7.1f} s  {self.variant:<12} {where}{lasts}"


@dataclass(slots=True)
class PlanState:
    """A plan in the making: the random numbers, the time of the next fault, and the deaths of each worker so far."""

    source: random.Random
    facts: PlanFacts
    at: float
    deaths: dict[str, list[float]] = field(default_factory=dict)

    def targets(self, variant: str, other_than: str | None) -> list[ChaosTarget]:
        """Return the workers that may have this fault now, none of them of the role that is disturbed already."""
        found = [one for one in self.facts.workers if one.role != other_than]
        if variant == CUT:
            found = [one for one in found if one.role in PULLING]
        return [one for one in found if variant not in DEADLY or self.may_die(one)]

    def may_die(self, worker: ChaosTarget) -> bool:
        since = self.at - self.facts.restart_window
        return sum(at >= since for at in self.deaths.get(worker.name, ())) < self.facts.deaths

    def fault(self, variant: str, other_than: str | None = None) -> PlannedFault | None:
        """Draw a fault of this variant; None if nobody may have it now."""
        seconds = self.duration(variant)
        if variant == FILL:
            if other_than == DISK:
                return None
            return PlannedFault(self.at, variant, self.source.choice(self.facts.folders), DISK, seconds)
        targets = self.targets(variant, other_than)
        if not targets:
            return None
        target = self.source.choice(targets)
        rank = self.source.randrange(target.ranks) if variant != CUT else 0
        if variant in DEADLY:
            self.deaths.setdefault(target.name, []).append(self.at)
        return PlannedFault(self.at, variant, target.name, target.role, seconds, rank)

    def beside(self, last: PlannedFault, variant: str) -> PlannedFault | None:
        """Draw a fault that begins soon after the last one, of somebody else; None if nobody else may have it."""
        after, self.at = self.at, round(last.at + self.source.uniform(*LAGS), 2)
        found = self.fault(variant, last.role)
        self.at = after
        return found

    def duration(self, variant: str) -> float:
        silence = self.facts.silence
        ranges = {
            KILL: (0.0, 0.0), SHORT_STOP: (0.3 * silence, 0.6 * silence), LONG_STOP: (silence + 1.0, silence + 2.5),
            SLOW: (2.0, 5.0), CUT: (2.0, 6.0), FILL: (2.0, 6.0),
        }  # fmt: skip
        return round(self.source.uniform(*ranges[variant]), 2)


def plan_faults(seed: int, minutes: float, faults: Sequence[str], facts: PlanFacts) -> list[PlannedFault]:
    """Return the faults in the order of their times: each variant that is possible at least once, and then more until
    the minutes are over. At most two at a time, and never two of workers of one role."""
    state = PlanState(random.Random(seed), facts, 0.0)
    state.at = round(state.source.uniform(*PAUSES), 2)
    variants = [variant for fault in faults for variant in VARIANTS[fault] if fault not in left_out(faults, facts)]
    planned = list[PlannedFault]()
    while variants and (not planned or state.at <= 60 * minutes):
        found = list(drawn(state, variants))
        planned += [one for one in found if one.free_at <= 60 * minutes] if planned else found
        if not found:
            state.at += PAUSES[1]
    return planned


def drawn(state: PlanState, variants: Sequence[str]) -> Iterator[PlannedFault]:
    """Yield each variant once, in random order; one that nobody may have now is left out of this round."""
    order = state.source.sample(list(variants), len(variants))
    last: PlannedFault | None = None
    for variant in order:
        beside = None
        if last is not None and len(state.facts.workers) > 2 and state.source.random() < OVERLAPS:
            beside = state.beside(last, variant)
        one = beside or state.fault(variant)
        if one is not None:
            yield one
            state.at = round(max(state.at, one.free_at + state.source.uniform(*PAUSES)), 2)
        # The next fault overlaps neither of two that overlap.
        last = None if beside else one


def left_out(faults: Sequence[str], facts: PlanFacts) -> dict[str, str]:
    """Return the faults that are impossible for this launch, with the reasons."""
    found = {}
    if CUT in faults and not any(one.role in PULLING for one in facts.workers):
        found[CUT] = "no worker here pulls KV blocks"
    if CUT in faults and not any(one.role not in PULLING for one in facts.workers):
        found[CUT] = "there is no prefill worker to pull KV blocks from"
    if FILL in faults and not facts.folders:
        found[FILL] = "the launch writes to no small filesystem"
    if KILL in faults and not facts.deaths:
        found[KILL] = "--restart-attempts 0: a worker that dies is given up"
    return found
