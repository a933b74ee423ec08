# SPDX-License-Identifier: Apache-2.0
"""One seed from its first event to its checks."""

import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import checks
from clients import ClientCall
from engine_process import TinyModel
from faults import FaultMaker, SeedFault, planned, planned_changes
from install import REAL, enter
from load import wishes
from served_proxy import ProxyProcess
from site_plan import SitePlan
from supervised_site import SupervisedSite
from virtual_time import SeededWorld

# Seconds that a launch has to become whole, at its begin and after the last fault.
WHOLE_WITHIN = 30.0
# Seconds after the last fault and the last answer at which nothing may be left.
SETTLED_AFTER = 2.0
# Virtual seconds after which a seed is ended in any case.
LONGEST = 400.0
# A folder in memory, for the files that proxies share.
MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class SeedReport:
    """The outcome of a seed."""

    seed: int
    trace: str
    requests: int
    tokens: int
    seconds: float
    cpu: float
    steps: int
    violations: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)


class SeedRun:
    """The world of one seed with its launch, clients and faults."""

    def __init__(
        self, seed: int, plan: SitePlan, model: TinyModel, folder: Path, trace: TextIO | None,
        most_faults: int | None,
    ) -> None:  # fmt: skip
        plan = self.plan = plan.of_seed(seed)
        world = self.world = SeededWorld(seed, trace)
        enter(world)
        self.site = SupervisedSite(world, plan, model, folder)
        self.calls: list[ClientCall] = []
        self.waiting = 0
        self.made = FaultMaker(world, self.site)
        self.wishes = wishes(plan, world.random("load"))
        seconds = self.wishes[-1][0] if self.wishes else 1.0
        drawn = planned(plan, world.random("faults"), seconds)
        drawn += planned_changes(plan, world.random("changes"), seconds)
        self.faults: Sequence[SeedFault] = sorted(drawn, key=lambda fault: fault.at)[:most_faults]
        self.folder, self.model = folder, model

    def find_proxy(self) -> ProxyProcess | None:
        """Return the proxy that the kernel gives a new connection, if one listens."""
        proxies = self.site.proxies
        return self.world.random("listener").choice(proxies) if proxies else None

    def ended(self) -> None:
        """Note that a client has its outcome."""
        self.waiting -= 1

    def run(self) -> None:
        world = self.world
        first = world.now()
        self.site.begin()
        self.run_for(WHOLE_WITHIN, lambda: self.site.is_whole)
        if not self.site.is_whole:
            world.violate("the_service_is_whole_again: it did not even start")
            return
        begin = world.now() + 0.1
        for at, wish in self.wishes:
            call = ClientCall(world, wish, self.find_proxy, self.ended)
            self.calls.append(call)
            world.at(begin + at, call.begin)
        self.made.plan(list(self.faults), begin)
        self.waiting = len(self.calls)
        world.run(lambda: (not self.waiting and world.time > self.made.over_at) or world.time > first + LONGEST)
        world.run_until(max(world.time, self.made.over_at) + SETTLED_AFTER)
        self.run_for(WHOLE_WITHIN, lambda: self.site.is_whole)
        checks.check_all(self)

    def run_for(self, seconds: float, is_over: "checks.Condition") -> None:
        until = self.world.time + seconds
        self.world.run(lambda: is_over() or self.world.time > until)


def run_seed(
    seed: int, plan: SitePlan, model: TinyModel, trace: TextIO | None = None, most_faults: int | None = None
) -> SeedReport:
    """Run one seed, with the first `most_faults` of its faults."""
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="pontil-world-", dir=MEMORY if MEMORY.is_dir() else None))
    began = REAL.cpu()
    try:
        run = SeedRun(seed, plan, model, folder, trace, most_faults)
        run.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    world = run.world
    tokens = sum(len(ids) for call in run.calls for one in call.tries for ids in one.ids)
    return SeedReport(
        seed, world.hash.hexdigest()[:16], len(run.calls), tokens, world.time - 10_000.0, REAL.cpu() - began,
        world.steps, world.violations, [str(fault) for fault in run.faults], list(world.last),
    )  # fmt: skip
