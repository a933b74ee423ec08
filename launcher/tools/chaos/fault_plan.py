# SPDX-License-Identifier: Apache-2.0
"""The plan of faults: a pure function of the seed, the minutes and the launch, so that a run can be repeated."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

FAULTS = KILL, STOP, SLOW, CUT, STALL, FILL, GREED = ("kill", "stop", "slow", "cut", "stall", "fill", "greed")
# A stop that is shorter than the silence after which a process is killed, and one that is longer.
SHORT_STOP, LONG_STOP = "stop (short)", "stop (long)"
VARIANTS = {fault: (SHORT_STOP, LONG_STOP) if fault == STOP else (fault,) for fault in FAULTS}
DEADLY = (KILL, LONG_STOP)
# Faults of proxies, whose streams their clients continue at another one.
OF_PROXIES = (KILL, STOP, SLOW)
# Faults of links, which a worker's rank 0 has.
OF_LINKS = (CUT, STALL)
# Roles of workers that pull KV blocks, and of proxies.
PULLING = ("decode", "mixed")
PROXY = "proxy"
# Seconds from the end of a fault to the next, and from the beginning of one to a second that it overlaps.
PAUSES, LAGS = (1.5, 4.0), (0.2, 1.0)
OVERLAPS = 0.25
# Seconds that a process is expected to take to come back; one that takes longer delays what follows.
COMES_BACK = 4.0
# Most deaths of one process within the window of the restart policy, and how many that are below its limit.
MOST_DEATHS, SPARE_DEATHS = 3, 1
# Faults of no process: a filesystem and a caller count as places of their own.
DISK, CALLER = "disk", "caller"
PLACES = {FILL: DISK, GREED: CALLER}
# A variant of a fault, and whether it is a proxy's.
Kind = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class ChaosTarget:
    """A worker or a proxy that may be disturbed."""

    name: str
    role: str
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The launch to plan for: the terms of its supervisor, the small filesystems that it writes to, by a folder on
    each, its proxies, and the callers that may be greedy beside that of the load."""

    silence: float
    restart_attempts: int
    restart_window: float
    workers: tuple[ChaosTarget, ...]
    folders: tuple[str, ...] = ()
    proxies: tuple[ChaosTarget, ...] = ()
    callers: tuple[str, ...] = ()

    def places(self, fault: str) -> tuple[str, ...]:
        """Return the targets of a fault of no process."""
        return {FILL: self.folders, GREED: self.callers}[fault]

    @property
    def has_stand_in(self) -> bool:
        """True if one proxy serves while another is disturbed."""
        return len(self.proxies) > 1

    @property
    def deaths(self) -> int:
        """The deaths of one process that a window may have."""
        least = min(self.restart_attempts, 1)
        return max(least, min(MOST_DEATHS, self.restart_attempts - SPARE_DEATHS))


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault that begins `at` seconds after the load, or as soon after that as the launch is whole. The `target` is a
    worker, a proxy, a folder or a caller."""

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
    def kind(self) -> Kind:
        return self.variant, self.role == PROXY

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
    """A plan in the making: the random numbers, the time of the next fault, and the deaths of each process so far."""

    source: random.Random
    facts: PlanFacts
    at: float
    deaths: dict[str, list[float]] = field(default_factory=dict)

    def targets(self, kind: Kind, other_than: str | None) -> list[ChaosTarget]:
        """Return the processes that may have this fault now, none of them of the role that is disturbed already."""
        variant, of_proxy = kind
        candidates = [
            target for target in (self.facts.proxies if of_proxy else self.facts.workers) if target.role != other_than
        ]
        if variant == CUT:
            candidates = [target for target in candidates if target.role in PULLING]
        return [target for target in candidates if variant not in DEADLY or self.may_die(target)]

    def may_die(self, target: ChaosTarget) -> bool:
        since = self.at - self.facts.restart_window
        return sum(at >= since for at in self.deaths.get(target.name, ())) < self.facts.deaths

    def may_overlap(self, last: PlannedFault, kind: Kind) -> bool:
        """Return whether enough workers serve during both: of two workers only one may be disturbed at a time."""
        return len(self.facts.workers) > 2 or kind[1] or last.role == PROXY

    def fault(self, kind: Kind, other_than: str | None = None) -> PlannedFault | None:
        """Draw a fault of this kind; None if nobody may have it now."""
        variant, _ = kind
        seconds = self.duration(variant)
        if (place := PLACES.get(variant)) is not None:
            if other_than == place:
                return None
            return PlannedFault(self.at, variant, self.source.choice(self.facts.places(variant)), place, seconds)
        targets = self.targets(kind, other_than)
        if not targets:
            return None
        target = self.source.choice(targets)
        rank = self.source.randrange(target.ranks) if variant not in OF_LINKS else 0
        if variant in DEADLY:
            self.deaths.setdefault(target.name, []).append(self.at)
        return PlannedFault(self.at, variant, target.name, target.role, seconds, rank)

    def beside(self, last: PlannedFault, kind: Kind) -> PlannedFault | None:
        """Draw a fault that begins soon after the last one, of somebody else; None if nobody else may have it."""
        after, self.at = self.at, round(last.at + self.source.uniform(*LAGS), 2)
        planned_fault = self.fault(kind, last.role)
        self.at = after
        return planned_fault

    def duration(self, variant: str) -> float:
        silence = self.facts.silence
        ranges = {
            KILL: (0.0, 0.0),
            SHORT_STOP: (0.3 * silence, 0.6 * silence),
            LONG_STOP: (silence + 1.0, silence + 2.5),
            SLOW: (2.0, 5.0),
            CUT: (2.0, 6.0),
            STALL: (2.0, 6.0),
            FILL: (2.0, 6.0),
            GREED: (4.0, 8.0),
        }
        return round(self.source.uniform(*ranges[variant]), 2)


def kinds_of(faults: Sequence[str], facts: PlanFacts) -> list[Kind]:
    """Return the kinds of these faults that are possible: of workers and places, then of proxies."""
    impossible = left_out(faults, facts)
    possible = [fault for fault in faults if fault not in impossible]
    kinds = [(variant, False) for fault in possible for variant in VARIANTS[fault]]
    if facts.has_stand_in:
        kinds += [(variant, True) for fault in possible if fault in OF_PROXIES for variant in VARIANTS[fault]]
    return kinds


def plan_faults(seed: int, minutes: float, faults: Sequence[str], facts: PlanFacts) -> list[PlannedFault]:
    """Return the faults in the order of their times: each kind that is possible at least once, and then more until
    the minutes are over. At most two at a time, and never two of processes of one role."""
    state = PlanState(random.Random(seed), facts, 0.0)
    state.at = round(state.source.uniform(*PAUSES), 2)
    kinds = kinds_of(faults, facts)
    plan = list[PlannedFault]()
    while kinds and (not plan or state.at <= 60 * minutes):
        batch = list(drawn(state, kinds))
        plan += [planned_fault for planned_fault in batch if planned_fault.free_at <= 60 * minutes] if plan else batch
        if not batch:
            state.at += PAUSES[1]
    return plan


def drawn(state: PlanState, kinds: Sequence[Kind]) -> Iterator[PlannedFault]:
    """Yield each kind once, in random order; one that nobody may have now is left out of this round."""
    order = state.source.sample(list(kinds), len(kinds))
    last: PlannedFault | None = None
    for kind in order:
        beside = None
        if last is not None and state.may_overlap(last, kind) and state.source.random() < OVERLAPS:
            beside = state.beside(last, kind)
        planned_fault = beside or state.fault(kind)
        if planned_fault is not None:
            yield planned_fault
            state.at = round(max(state.at, planned_fault.free_at + state.source.uniform(*PAUSES)), 2)
        # The next fault overlaps neither of two that overlap.
        last = None if beside else planned_fault


def left_out(faults: Sequence[str], facts: PlanFacts) -> dict[str, str]:
    """Return the faults that are impossible for this launch, and the proxies where they are not disturbed, with the
    reasons."""
    reasons = {}
    if CUT in faults and not any(worker.role in PULLING for worker in facts.workers):
        reasons[CUT] = "no worker here pulls KV blocks"
    if CUT in faults and not any(worker.role not in PULLING for worker in facts.workers):
        reasons[CUT] = "there is no prefill worker to pull KV blocks from"
    if FILL in faults and not facts.folders:
        reasons[FILL] = "the launch writes to no small filesystem"
    if GREED in faults and not facts.callers:
        reasons[GREED] = "all requests are one caller's: it needs API keys, and a second one (--greedy-key)"
    if KILL in faults and not facts.deaths:
        reasons[KILL] = "--restart-attempts 0: a process that dies is given up"
    if len(facts.proxies) == 1 and any(fault in OF_PROXIES for fault in faults):
        reasons["proxies"] = "this launch has one, and nobody would serve meanwhile (--proxies 2)"
    return reasons
