# SPDX-License-Identifier: Apache-2.0
"""Faults: a list that follows from the seed alone, so that any part of it can be played again."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from engine_process import EngineProcess
from network import LINK_TIMEOUT, WireLink
from operators import Operators
from processes import WorldProcess
from rank_process import FollowerProcess
from site_plan import SitePlan
from supervised_site import SupervisedSite
from virtual_time import SeededWorld


@dataclass(frozen=True, slots=True)
class SeedFault:
    """A fault `at` so many seconds after the first request. `target` names a process, `other` the far end of a link;
    `seconds` is how long it lasts, `draw` decides what is left open."""

    at: float
    kind: str
    target: str
    seconds: float = 0.0
    draw: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.at:.3f} s: {self.kind} {self.target}{lasts}"


# Kinds with their weights, and the seconds that they last.
KINDS: dict[str, tuple[int, tuple[float, ...]]] = {
    "kill": (5, ()),
    "stop": (3, (0.05, 0.3, 1.0, 2.5, 6.0)),
    "cut": (2, ()),
    "silence": (2, (0.2, 1.0, 4.0, 8.0)),
    "stick": (1, (0.5, 3.0, 7.0)),
}

# The same of operators' changes: they are taken back after so many seconds.
CHANGES: dict[str, tuple[int, tuple[float, ...]]] = {
    "drain": (3, (0.1, 1.0, 4.0)),
    "restart": (2, ()),
    "role": (3, (0.1, 1.0, 4.0)),
}


def planned_changes(plan: SitePlan, chance: random.Random, seconds: float) -> list[SeedFault]:
    """Return the operators' changes of a seed during so many seconds."""
    made = []
    for _ in range(plan.changes):
        kind = chance.choices(list(CHANGES), [weight for weight, _ in CHANGES.values()])[0]
        lasts = CHANGES[kind][1]
        at, target = chance.random() * seconds, chance.choice(plan.worker_names)
        made.append(SeedFault(at, kind, target, chance.choice(lasts) if lasts else 0.0, chance.random()))
    return made


def planned(plan: SitePlan, chance: random.Random, seconds: float) -> list[SeedFault]:
    """Return the faults of a seed, in order, during so many seconds."""
    made = []
    for _ in range(plan.faults):
        kind = chance.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        names = plan.worker_names + (plan.proxy_names if kind in ("kill", "stop") else [])
        names += plan.follower_names if kind in ("kill", "stop", "stick") else []
        lasts = KINDS[kind][1]
        made.append(
            SeedFault(
                chance.random() * seconds, kind, chance.choice(names), chance.choice(lasts) if lasts else 0.0,
                chance.random(),
            )
        )  # fmt: skip
    return sorted(made, key=lambda fault: fault.at)


class FaultMaker:
    """The maker of faults. `over_at` is when the last of them has ended."""

    def __init__(self, world: SeededWorld, site: SupervisedSite) -> None:
        self.world, self.site = world, site
        self.over_at = 0.0
        self.operators = Operators(world, site, self.goes_on)
        self.acts: dict[str, Callable[[SeedFault, WorldProcess], None]] = {
            "kill": lambda fault, process: process.kill(),
            "stop": self.stop,
            "cut": self.cut,
            "silence": self.silence,
            "stick": self.stick,
        }

    def plan(self, faults: list[SeedFault], begin: float) -> None:
        for fault in faults:
            self.over_at = max(self.over_at, begin + fault.at + fault.seconds)
            self.world.at(begin + fault.at, partial(self.happen, fault))

    def goes_on(self, seconds: float) -> None:
        """Note that a fault is not over for so many seconds."""
        self.over_at = max(self.over_at, self.world.now() + seconds)

    def happen(self, fault: SeedFault) -> None:
        self.world.note("fault", fault)
        if fault.kind in CHANGES:
            self.operators.act(fault)
            return
        for process in self.site.processes:
            if process.name == fault.target and process.alive:
                self.acts[fault.kind](fault, process)

    def stop(self, fault: SeedFault, process: WorldProcess) -> None:
        process.stop()
        self.world.after(fault.seconds, process.resume)

    def links_of(self, process: WorldProcess) -> list[WireLink]:
        """Return its links that can break: those of a worker's ranks are sockets of one host."""
        pairs = [(link, [end.process for end in link.ends]) for link in self.world.network.open_links()]
        return [link for link, ends in pairs if process in ends and not any(map(is_follower, ends))]

    def cut(self, fault: SeedFault, process: WorldProcess) -> None:
        """Break one connection of a process, with or without what is on its way."""
        if links := self.links_of(process):
            links[int(fault.draw * len(links))].cut(survives=fault.draw * 1000 % 1 < 0.3)

    def silence(self, fault: SeedFault, process: WorldProcess) -> None:
        """Let nothing through one direction of a connection. Beyond the link's timeout both ends take it for cut, and
        can connect again when it is mended."""
        links = self.links_of(process)
        if not links:
            return
        link, way = links[int(fault.draw * len(links))], int(fault.draw * 1000 % 1 < 0.5)
        names = link.ends[0].process.name, link.ends[1].process.name
        unreachable = self.world.network.unreachable
        link.silence(way)
        unreachable.add(names)

        def mend() -> None:
            unreachable.discard(names)
            link.mend(way)

        self.world.after(fault.seconds, mend)
        if fault.seconds > LINK_TIMEOUT:
            self.world.after(LINK_TIMEOUT, link.cut)

    def stick(self, fault: SeedFault, process: WorldProcess) -> None:
        """Have the pulls of a process hang, whatever it asks of them."""
        copier = process.copier if isinstance(process, (EngineProcess, FollowerProcess)) else None
        if copier is not None:
            copier.stuck_until = self.world.now() + fault.seconds


def is_follower(process: WorldProcess) -> bool:
    return isinstance(process, FollowerProcess)
