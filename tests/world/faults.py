# SPDX-License-Identifier: Apache-2.0
"""Faults: a list that follows from the seed alone, so that any part of it can be played again."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from disks import DIES_WITHIN, DISKS, USAGE, WRITES, DeadlyWrite
from link_faults import FLAP, LOOK_AGAIN, LinkFaults, SeedFault
from operators import LOOK, NEW_KEYS, RESTART_PROXIES, SCALE, UPGRADE, Operators
from rank_process import DriverProcess, FollowerProcess
from ready_probes import probe
from releases import ReleaseUpgrade, next_name
from served_proxy import ProxyProcess
from site_plan import SitePlan
from supervised_site import SupervisedSite
from virtual_time import SeededWorld
from worker_process import WorkerProcess

from pontil.runtime.wire.simulated.processes import WorldProcess

# Kinds with their weights, and the seconds that they last.
KINDS: dict[str, tuple[int, tuple[float, ...]]] = {
    "kill": (5, ()),
    "stop": (3, (0.05, 0.3, 1.0, 2.5, 6.0)),
    "cut": (2, ()),
    "silence": (2, (0.2, 1.0, 4.0, 8.0)),
    "stick": (1, (0.5, 3.0, 7.0)),
    "kill twice": (2, ()),
    "full": (2, (0.3, 1.5, 4.0, 8.0)),
    "slow disk": (1, (0.5, 2.0, 5.0)),
    "clock": (2, ()),
    "one clock": (1, ()),
    "slow": (2, (0.5, 2.0, 4.0)),
    "host": (2, (1.0, 4.0, 8.0)),
    "power cut": (1, (1.0, 4.0, 8.0)),
    "oom": (1, ()),
    "no memory": (1, (0.3, 1.5)),
    "tear": (2, (DIES_WITHIN,)),
    # Drawn as cuts.
    FLAP: (0, (0.5, 2.0, 5.0)),
}

# A kind that is likely in the shape of a seed happens so many times as often.
LIKELY = 4
# The second host, with the workers of one role; the other one, and what befalls either.
HOST, FIRST_HOST, POWER_CUT = "host", "first host", "power cut"
# The factors of a slow worker's steps and pulls, and the rows of a step that still has memory.
SLOWNESS, FEW_ROWS = (10.0, 100.0), 24
# The jumps of the clock of the day: of all processes, or of one process or host alone, whose successors have it too.
CLOCK, ONE_CLOCK, JUMPS = "clock", "one clock", (-7200.0, -30.0, -1.5, 2.0, 90.0, 3600.0)
# Share of second kills that wait for a meeting, and of deaths of a proxy for want of memory that wait for a body; and
# the seconds for which these do.
AIMED, STARVES_FOR = 0.5, 1.0
# Share of cuts that are a network which flaps instead.
FLAPS = 0.3
# Seconds within which what waited for a disk is written.
WRITTEN_WITHIN = 60.0

# The same of operators' changes: they are taken back after so many seconds.
CHANGES: dict[str, tuple[int, tuple[float, ...]]] = {
    "drain": (3, (0.1, 1.0, 4.0)),
    "restart": (2, ()),
    "role": (3, (0.1, 1.0, 4.0)),
}
# Seconds within which the workers of a swap take each other's roles.
SWAPPED_WITHIN = 0.02
# Share of changes that are of the launch instead: of how many workers it has, or of their release, which is taken back,
# or of its proxies.
OF_LAUNCH, LAUNCH_CHANGES = 0.35, {SCALE: (0.1, 1.0, 4.0), RESTART_PROXIES: (0.0,), UPGRADE: (0.2, 1.0, 4.0)}
# The part of the usual time after which an upgrade begins: the new workers are to be there in time.
EARLY = 0.2
# Share of faults of old workers that befall the new ones instead, while these are there.
OF_NEXT = 0.5


def planned_changes(plan: SitePlan, chance: random.Random, seconds: float) -> list[SeedFault]:
    """Return the operators' changes of a seed during so many seconds."""
    made = []
    for _ in range(plan.changes):
        kind = chance.choices(list(CHANGES), [weight for weight, _ in CHANGES.values()])[0]
        lasts = CHANGES[kind][1]
        at, target = chance.random() * seconds, chance.choice(plan.worker_names)
        made.append(SeedFault(at, kind, target, chance.choice(lasts) if lasts else 0.0, chance.random()))
    # Drawn behind all of the others, which stay as they are.
    return [of_launch(change, chance, plan) for change in made] + planned_swaps(plan, chance, seconds)


def planned_swaps(plan: SitePlan, chance: random.Random, seconds: float) -> list[SeedFault]:
    """Return changes by which all workers take the other role at about the same time: prompts are on their way then
    between any two of them, in both directions."""
    made = list[SeedFault]()
    for _ in range(plan.swaps):
        at = chance.random() * seconds
        for name in plan.worker_names:
            lasts = chance.choice(CHANGES["role"][1])
            made.append(SeedFault(at + chance.random() * SWAPPED_WITHIN, "role", name, lasts, chance.random()))
    return made


def of_launch(change: SeedFault, chance: random.Random, plan: SitePlan) -> SeedFault:
    if chance.random() >= OF_LAUNCH:
        return change
    kind = chance.choice(list(LAUNCH_CHANGES))
    if kind == UPGRADE and (plan.hosts > 1 or plan.has_ranks or plan.stages > 0):
        kind = NEW_KEYS if plan.keys > 0 else SCALE
    at = change.at * EARLY if kind == UPGRADE else change.at
    lasts = LAUNCH_CHANGES.get(kind, LAUNCH_CHANGES[UPGRADE])
    return replace(change, at=at, kind=kind, seconds=chance.choice(lasts))


def planned(plan: SitePlan, chance: random.Random, seconds: float) -> list[SeedFault]:
    """Return the faults of a seed, in order, during so many seconds."""
    made = []
    kinds = tuple(kind for kind in plan.kinds or KINDS if kind != HOST or plan.hosts > 1)
    for _ in range(plan.faults if kinds else 0):
        weights = [KINDS[kind][0] * (LIKELY if kind in plan.likely else 1) for kind in kinds]
        kind = chance.choices(kinds, weights)[0]
        names = targets_of(kind, plan)
        lasts = KINDS[kind][1]
        made.append(
            SeedFault(
                chance.random() * seconds, kind, chance.choice(names), chance.choice(lasts) if lasts else 0.0,
                chance.random(),
            )
        )  # fmt: skip
    # Drawn behind all of the others, which stay as they are.
    return sorted((flapping(fault, chance) for fault in made), key=lambda fault: fault.at)


def flapping(fault: SeedFault, chance: random.Random) -> SeedFault:
    if fault.kind != "cut" or chance.random() >= FLAPS:
        return fault
    return replace(fault, kind=FLAP, seconds=chance.choice(KINDS[FLAP][1]))


# Seconds in which the second death of a process comes, and from when its successor serves.
KILLED_AGAIN_WITHIN, SERVES_FOR = 10.0, 0.3
# Those in which it has met another process, mostly the first of them, and between two looks for that; and the share of
# cases in which it is to have met a worker.
MEETS_FOR, LOOK_FOR_MEETING, WITH_A_WORKER = 0.02, 0.5e-3, 0.5


def targets_of(kind: str, plan: SitePlan) -> Sequence[str]:
    """Return the names that a fault of a kind may have as its target."""
    if kind in ("full", "slow disk"):
        return DISKS
    if kind == "clock":
        return [CLOCK]
    if kind == "host":
        return [HOST]
    if kind == POWER_CUT:
        return [FIRST_HOST, *[HOST] * (plan.hosts > 1)]
    if kind == "tear":
        return plan.proxy_names
    if kind == ONE_CLOCK:
        return [*plan.process_names, *[HOST] * (plan.hosts > 1)]
    names = plan.worker_names + (plan.proxy_names if kind in ("kill", "kill twice", "stop", "oom") else [])
    return names + (plan.follower_names if kind in ("kill", "stop", "stick") else [])


class FaultMaker:
    """The maker of faults. `over_at` is when the last of them has ended."""

    def __init__(self, world: SeededWorld, site: SupervisedSite) -> None:
        self.world, self.site = world, site
        self.over_at = self.busy_until = 0.0
        self.has_starved = False
        self.operators = Operators(world, site, self.goes_on)
        self.links = LinkFaults(world, self.goes_on)
        self.acts: dict[str, Callable[[SeedFault, WorldProcess], None]] = {
            "kill": lambda fault, process: process.kill(),
            "stop": self.stop,
            "cut": self.links.cut,
            "flap": self.links.flap,
            "silence": self.links.silence,
            "stick": self.stick,
            "kill twice": self.kill_twice,
            "tear": self.tear,
            "slow": self.slow,
            "oom": self.starve,
            "no memory": self.take_memory,
        }

    def plan(self, faults: list[SeedFault], begin: float) -> None:
        for fault in faults:
            self.over_at = max(self.over_at, begin + fault.at + fault.seconds)
            self.world.at(begin + fault.at, partial(self.happen, fault))

    @property
    def is_busy(self) -> bool:
        """Return whether a fault that has begun is not over."""
        return self.busy_until > self.world.now()

    def goes_on(self, seconds: float) -> None:
        """Note that a fault is not over for so many seconds."""
        self.busy_until = max(self.busy_until, self.world.now() + seconds)
        self.over_at = max(self.over_at, self.busy_until)

    def happen(self, fault: SeedFault) -> None:
        self.world.note("fault", fault)
        self.goes_on(fault.seconds)
        if fault.kind == UPGRADE:
            ReleaseUpgrade(self.site, self.operators, fault).begin()
            return
        if fault.kind in CHANGES or fault.kind in LAUNCH_CHANGES or fault.kind == NEW_KEYS:
            self.operators.act(fault)
            return
        if fault.kind == CLOCK:
            self.world.jumps += JUMPS[int(fault.draw * len(JUMPS))]
            return
        if fault.kind == ONE_CLOCK:
            self.jump_alone(fault)
            return
        if fault.target in (HOST, FIRST_HOST):
            self.lose_host(fault)
            return
        if fault.target in DISKS:
            self.harm_disk(fault)
            return
        fault = self.of_next(fault)
        for process in self.site.processes:
            if process.name == fault.target and process.alive:
                self.acts[fault.kind](fault, process)

    def of_next(self, fault: SeedFault) -> SeedFault:
        """Return a fault of an old worker as it befalls a new one, if it does."""
        if self.site.next is None or fault.draw * 1e5 % 1 >= OF_NEXT or fault.target not in self.site.plan.worker_names:
            return fault
        return replace(fault, target=next_name(fault.target))

    def jump_alone(self, fault: SeedFault) -> None:
        """Have the clock of the day of a process, or of all those on the second host, jump."""
        plan, alone = self.site.plan, self.world.jumps_of
        far = [name for name in plan.process_names if plan.host_of(name)]
        for name in far if fault.target == HOST else [fault.target]:
            alone[name] = alone.get(name, 0.0) + JUMPS[int(fault.draw * len(JUMPS))]

    def stop(self, fault: SeedFault, process: WorldProcess) -> None:
        process.stop()
        self.world.after(fault.seconds, process.resume)

    def kill_twice(self, fault: SeedFault, process: WorldProcess) -> None:
        """Kill a process, and its successor soon after that has begun to serve: every other one as soon as it meets a
        worker, so that a registration or a greeting is not over."""
        process.kill()
        within = self.world.now() + KILLED_AGAIN_WITHIN

        def look() -> None:
            serving = [one for one in (*self.site.all_workers, *self.site.proxies) if one.name == fault.target]
            if not serving and self.world.now() < within:
                self.goes_on(LOOK_AGAIN + SERVES_FOR + MEETS_FOR)
                self.world.after(LOOK_AGAIN, look)
            elif serving and fault.draw * 1e6 % 1 < AIMED:
                # A worker meets its proxies at once, and other workers with a request.
                with_a_worker = fault.draw * 1e7 % 1 < WITH_A_WORKER
                kill_at_a_meeting(serving[0], with_a_worker, self.world.now() + SERVES_FOR, fault.draw**3 * MEETS_FOR)
            elif serving:
                self.world.after(fault.draw * SERVES_FOR, serving[0].kill)

        look()

    def starve(self, fault: SeedFault, process: WorldProcess) -> None:
        """Have the kernel kill a process for want of memory: at once, or when it asks for some. So one proxy of a seed
        dies as it reads a body; of two such deaths its client would be told."""
        kill = partial(self.site.kill_for_memory, process)
        if not isinstance(process, ProxyProcess) or self.has_starved or fault.draw * 1e6 % 1 >= AIMED:
            kill()
            return
        self.has_starved, process.at_a_body = True, kill
        self.goes_on(STARVES_FOR)
        self.world.after(STARVES_FOR, lambda: kill() if process.alive else None)

    def stick(self, fault: SeedFault, process: WorldProcess) -> None:
        """Have the pulls of a process hang, whatever it asks of them."""
        if isinstance(process, (WorkerProcess, FollowerProcess)):
            for connector in process.connectors:
                connector.stuck_until = self.world.now() + fault.seconds

    def lose_host(self, fault: SeedFault) -> None:
        """Have a host die; after a while another machine has its address, or it has power again, and starts the
        same."""
        number = int(fault.target == HOST)
        if self.site.launches[number].is_over:
            return
        if fault.kind == POWER_CUT:
            self.site.cut_power(number)
        else:
            self.site.lose_host(number)
        self.operators.hang_up()
        self.world.after(fault.seconds, partial(self.site.replace_host, number))

    def harm_disk(self, fault: SeedFault) -> None:
        """Have no room on a disk, or have it be slow, for a while."""
        disk, until = self.world.disks.disks[fault.target], self.world.now() + fault.seconds
        if fault.kind == "full":
            disk.full_until = max(disk.full_until, until)
            if fault.target == USAGE:
                probe(self.world, fault.seconds, lambda: self.site.proxies)
        else:
            disk.slow_until = max(disk.slow_until, until)
        self.world.at(until, partial(self.watch_logs, until + WRITTEN_WITHIN))

    def watch_logs(self, latest: float) -> None:
        """A disk's fault is over once what waited for it is written: a proxy tries that seldom if it takes long."""
        failing = any(one.proxy.books.log.failing for one in self.site.proxies if one.proxy and one.proxy.books.log)
        if failing and self.world.now() < latest:
            self.goes_on(LOOK)
            self.world.after(LOOK, partial(self.watch_logs, latest))

    def tear(self, fault: SeedFault, process: WorldProcess) -> None:
        """Have a process die in one of its next writes, which is cut."""
        deadly = self.world.disks.deadly
        deadly[process] = DeadlyWrite(int(fault.draw * WRITES), fault.draw * 1000 % 1)
        self.world.after(fault.seconds, lambda: deadly.pop(process, None))

    def slow(self, fault: SeedFault, process: WorldProcess) -> None:
        """Have the steps and pulls of a worker take 10 to 100 times as long. The fault is over with the last of
        them."""
        if not isinstance(process, WorkerProcess):
            return
        slowness = SLOWNESS[0] * (SLOWNESS[1] / SLOWNESS[0]) ** fault.draw

        def set_to(value: float) -> None:
            process.slowness = value
            if not process.alive or process.worker is None:
                return
            for connector in process.connectors:
                connector.slowness = value
                self.goes_on(max(0.0, connector.free_at - self.world.now()))
            self.goes_on(max(0.0, process.busy_until - self.world.now()))

        set_to(slowness)
        self.world.after(fault.seconds, partial(set_to, 1.0))

    def take_memory(self, fault: SeedFault, process: WorldProcess) -> None:
        """Have a worker find no memory for large steps."""
        if isinstance(process, WorkerProcess) and not isinstance(process, DriverProcess):
            process.most_rows = FEW_ROWS
            self.world.after(fault.seconds, partial(setattr, process, "most_rows", math.inf))


def kill_at_a_meeting(process: WorldProcess, with_a_worker: bool, latest: float, seconds: float) -> None:
    """Kill a process so many seconds after its first connection with another one, or with a worker, and at the
    latest time in any case."""
    world = process.world
    others = [end.process for link in world.network.links_of(process) for end in link.ends]
    if world.now() >= latest or any(
        one is not process and (isinstance(one, WorkerProcess) or not with_a_worker) for one in others
    ):
        world.after(seconds, process.kill)
    elif process.alive:
        world.after(LOOK_FOR_MEETING, partial(kill_at_a_meeting, process, with_a_worker, latest, seconds))
