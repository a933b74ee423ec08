# SPDX-License-Identifier: Apache-2.0
"""A launch in the world: the real supervisor, over processes of the world."""

import io
import json
import math
import os
import selectors
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine_process import EngineProcess, TinyModel
from ghost_blocks import GhostRecords
from kinds import those_of
from plain_process import PlainProcess
from rank_process import DriverProcess, FollowerProcess
from served_proxy import ProxyProcess
from site_plan import SitePlan
from virtual_time import SeededWorld
from worker_process import WorkerProcess
from world_reporter import ReadySelector, WorldReporter

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.starter import ProcessStart
from pontil.launcher.child.system_process import SystemProcess
from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.host.oom import OomWatch
from pontil.launcher.keys.key_file import change_keys, make_key_file, read_key_file
from pontil.launcher.logs.console import Console
from pontil.launcher.options.worker_roles import NODE, TEXT_ROLES
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.topology import Topology
from pontil.launcher.supervisor.supervisor import (
    DRAIN_MARGIN,
    KILL_GRACE,
    TERM_GRACE,
    Orders,
    Supervisor,
    ask_to_drain,
    ask_to_end,
    has_work,
)
from pontil.runtime.config.proxy_config import proxy_config
from pontil.runtime.config.worker_config import worker_config
from pontil.runtime.foundation.line_pipe import LinePipe
from pontil.runtime.wire.links.keys import Keys
from pontil.runtime.wire.simulated.processes import WorldProcess

# Roles of workers that make no tokens.
PLAIN_ROLES = (*TEXT_ROLES, NODE)
# Seconds until an event reaches the supervisor, or what it says a process; and share of seeds whose machine is so busy
# that a process reads its pipe later, after so many seconds: what came by a socket meanwhile was read before.
NOTICES_WITHIN = 1e-3
BUSY, BUSY_SECONDS = 0.15, 0.3
# The machine of a launch, with cores for a few more workers than are planned, all of which have the first one.
MACHINE = HostDevices(cores=tuple(range(16)), quota=16, gpus=0)
# Seconds until a service manager starts a launch that has failed again.
STARTED_AGAIN_AFTER = 1.0
# Seconds between two looks of a launch that ends at its processes.
LOOK = 0.1
# Seconds of a proxy's start, at least and at most.
PROXY_START = (0.6, 1.4)


class HostLaunch:
    """The launch of one host: the real supervisor, whose turns are events, and the starter of its processes. After the
    death of its host it `is_over`."""

    is_warming = False

    def __init__(self, site: "SupervisedSite", number: int, joining: tuple[ChildPlan, ...] = ()) -> None:
        self.site, self.world, self.number = site, site.world, number
        self.chance = site.world.random("starts")
        self.pipes: dict[ProxyProcess, LinePipe] = {}
        plans, prepare = site.plan.child_plans(site.folder), ChildPlan("prepare", "prepare", "cpu", (), {})
        own = joining or tuple(
            one.with_keys(site.secret) for one in plans if site.plan.host_of(one.name) == number
        )  # fmt: skip
        self.supervisor = Supervisor(
            Orders(Topology(prepare, own, tuple(site.plan.controls[:1]), None), self, 30.0, machine=MACHINE),
            Console(io.StringIO()),
            RunDirectory(site.folder / f"run-{'next' if joining else number}"), selector=ReadySelector(),
        )  # fmt: skip
        self.supervisor.oom = OomWatch(site.oom_counter)
        self.due, self.is_over = math.inf, False
        # True for one that began after its host's death: if it cannot, as where a disk is full, it is started again.
        self.is_later = False
        # Those that died with the host.
        self.dead: list[WorldProcess] = []

    def begin(self) -> None:
        self.supervisor.monitors = True
        self.supervisor.start(self.supervisor.orders.topology.children)
        self.look_again()

    def look_again(self) -> None:
        if self.is_over:
            return
        self.look()
        self.world.after(self.supervisor.patience(), self.look_again)

    def look(self) -> None:
        """Take one turn of `Supervisor.monitor`."""
        self.supervisor.run_once()
        if self.supervisor.monitors:
            self.supervisor.reconcile(self.world.now())
        if self.supervisor.failure is not None:
            self.fail()
        self.world.after(self.site.hands_over_after, self.hand_over)

    def fail(self) -> None:
        """Do what `Supervisor.run` does once a launch cannot serve. That of a seed's begin is to have no such end."""
        if self.is_later:
            self.site.start_over(self)
        elif self is self.site.next and self.supervisor.monitors:
            self.end_monitoring()
            self.stop()

    def end_monitoring(self) -> None:
        self.supervisor.monitors = False
        self.supervisor.rollouts.close()

    def end(self, timeout: float) -> None:
        """Do what `Supervisor.run` does once it is told to end: have the workers drain, and then end."""
        supervisor = self.supervisor
        supervisor.asked.append(signal.SIGTERM)
        self.end_monitoring()
        leaders = [child for child in supervisor.children if child.state is ChildState.READY]
        for child in leaders:
            ask_to_drain(child, timeout)
        self.wait_for(lambda: not any(map(has_work, leaders)), timeout + DRAIN_MARGIN, self.stop)

    def stop(self) -> None:
        asked = bool(self.supervisor.asked)
        those_seen = [child for child in self.supervisor.children if child.ever_ready and not child.plan.is_proxy]
        if not all(asked and child.state is ChildState.READY for child in those_seen):
            self.site.unsaid_at = self.world.time
        for child in self.supervisor.living:
            ask_to_end(child, for_good=asked)
        self.wait_for(lambda: not self.supervisor.living, TERM_GRACE, self.kill)

    def kill(self) -> None:
        for child in self.supervisor.living:
            child.kill()
        self.wait_for(lambda: not self.supervisor.living, KILL_GRACE, self.site.forget_next)

    def wait_for(self, is_so: Callable[[], bool], within: float, then: Callable[[], object]) -> None:
        """Do something once something is so, or in a while, unless the host is gone."""
        if self.is_over:
            return
        if within <= 0 or is_so():
            then()
        else:
            self.world.after(LOOK, lambda: self.wait_for(is_so, within - LOOK, then))

    def wake(self) -> None:
        # One that computes wakes it later than it is now, and another one may before that.
        if (due := self.world.now() + NOTICES_WITHIN) < self.due:
            self.due = due
            self.world.at(due, self.woken)

    def woken(self) -> None:
        self.due = math.inf
        if not self.is_over:
            self.look()

    def hand_over(self) -> None:
        """Have the processes read the commands of the supervisor."""
        self.pipes = {process: pipe for process, pipe in self.pipes.items() if process.alive}
        for process, pipe in self.pipes.items():
            process.obey(pipe)
        for worker in self.site.all_workers:
            worker.hear()

    # The parts of a starter.

    def open(self, selector: selectors.BaseSelector, clock: Callable[[], float]) -> None:
        return

    def close(self) -> None:
        return

    def start(self, asked: ProcessStart) -> SystemProcess:
        """Start a process of the world. It begins its work when it has loaded what it needs."""
        name, *words = asked.words
        given = {flag: int(value) for flag, _, value in (word.partition("=") for word in words)}
        with os.fdopen(os.dup(given["--config-fd"])) as file:
            told = json.load(file)
        made: WorldProcess
        begin: Callable[[WorldReporter], None]
        if told["role"] == "proxy":
            made = proxy = ProxyProcess(self.world, name)
            self.pipes[proxy] = LinePipe(self.kept(made, given["--commands-fd"]))
            begin = self.begin_proxy(proxy, told["config"])
        elif told["config"].get("rank"):
            made = follower = FollowerProcess(self.world, name, self.site.ghosts)
            begin = self.begin_follower(follower, told["config"])
        elif told["role"] in PLAIN_ROLES:
            made = plain = PlainProcess(self.world, name, self.site.ghosts)
            begin = self.begin_plain(plain, told["config"], self.kept(made, given["--commands-fd"]))
        else:
            meets = told["config"].get("rank_endpoint") is not None
            kind = DriverProcess if meets else EngineProcess
            made = worker = kind(self.world, name, self.site.ghosts)
            if files := told["config"].get("kept_memory"):
                told["config"]["kept_memory"] = [self.kept(made, file) for file in files]
            begin = self.begin_worker(worker, told["config"], self.kept(made, given["--commands-fd"]))
        reporter = WorldReporter(self.kept(made, given["--report-fd"]), made, self.wake)
        made.at_death.append(self.wake)
        if self.site.begins_wrong(name):
            self.world.wrong.add(made)
        self.world.note("start", made)
        reporter.start()
        seconds = self.chance.uniform(*(PROXY_START if told["role"] == "proxy" else self.site.plan.worker_start))
        made.job(self.world.now() + seconds, lambda: begin(reporter))
        return made

    def begin_proxy(self, process: ProxyProcess, config: dict[str, Any]) -> Callable[[WorldReporter], None]:
        return lambda reporter: process.begin(proxy_config(config), self.site.model.tokenizer, reporter)

    def begin_worker(
        self, process: EngineProcess, config: dict[str, Any], commands: int
    ) -> Callable[[WorldReporter], None]:
        return lambda reporter: process.begin(
            worker_config(config), self.site.model, self.site.plan.blocks, reporter, commands
        )

    def begin_plain(
        self, process: PlainProcess, config: dict[str, Any], commands: int
    ) -> Callable[[WorldReporter], None]:
        return lambda reporter: process.begin(worker_config(config), self.site.model, reporter, commands)

    def begin_follower(self, process: FollowerProcess, config: dict[str, Any]) -> Callable[[WorldReporter], None]:
        return lambda reporter: process.begin(worker_config(config), self.site.model, self.site.plan.blocks, reporter)

    def kept(self, process: WorldProcess, descriptor: int) -> int:
        """Return a process's own descriptor of a file that it inherits."""
        made = os.dup(descriptor)
        process.descriptors.add(made)
        return made


class SupervisedSite:
    """The launches of all hosts."""

    def __init__(self, world: SeededWorld, plan: SitePlan, model: TinyModel, folder: Path) -> None:
        self.world, self.plan, self.folder = world, plan, folder
        self.model = replace(model, kv_heads=plan.kv_heads)
        self.ghosts = GhostRecords(world)
        # The kernel's count of processes that it killed for want of memory, and of how many the supervisor said so.
        self.oom_said = 0
        self.oom_kills, self.oom_counter = 0, folder / "memory.events"
        # True for a worker whose process begins with a wrong model (gates.py).
        self.begins_wrong: Callable[[str], bool] = lambda name: False
        # The key file, the same on all hosts, and what is in it, where there is one.
        busy = world.random("pipes").random() < BUSY
        self.hands_over_after = BUSY_SECONDS if busy else NOTICES_WITHIN
        self.key_file = folder / "keys"
        self.secret: str | None = None
        if plan.keys > 0:
            self.make_keys()
        world.network.host_of = plan.host_of
        self.launches = [HostLaunch(self, number) for number in range(plan.hosts)]
        # The launch of another release's workers beside them, while there is one, whether there was one, and when the
        # last of those ended that had a worker which told nobody that it leaves for good: it was dead by then, so that
        # proxies miss it whatever the others say, or the launch failed.
        self.next: HostLaunch | None = None
        self.had_next = False
        self.unsaid_at: float | None = None

    def begin(self) -> None:
        for launch in self.launches:
            launch.begin()

    def make_keys(self) -> None:
        make_key_file(self.key_file, force=True)
        self.secret = read_key_file(self.key_file)

    def change_keys(self) -> None:
        """Copy a new key file everywhere, and have every launcher read it."""
        self.make_keys()
        for launch in self.launches:
            change_keys(self.key_file, launch.supervisor.children)

    def launch_of(self, name: str) -> HostLaunch:
        """Return the launch that has a process of this name."""
        return self.launches[self.plan.host_of(name)]

    def begin_next(self, plans: tuple[ChildPlan, ...]) -> HostLaunch:
        """Begin a launch of workers that join the proxies of the first one."""
        made = self.next = HostLaunch(self, 0, plans)
        self.had_next = True
        made.begin()
        return made

    def forget_next(self) -> None:
        if self.next is not None:
            self.next.is_over = True
            self.next = None

    def lose_host(self, number: int) -> None:
        """Have a host die without a word, with all that runs there."""
        launch = self.launches[number]
        launch.is_over = True
        launch.dead = [one for one in self.processes if one.alive and self.plan.host_of(one.name) == number]
        for process in launch.dead:
            process.vanish()
        if number == 0:
            self.forget_next()

    def cut_power(self, number: int) -> None:
        """Have a host die so, and its disks lose what was not synced."""
        self.lose_host(number)
        self.world.disks.cut_power(number, self.plan.host_of)

    def replace_host(self, number: int) -> None:
        """Have a host that died begin again, or another machine at its address."""
        self.world.network.reset_dead(self.launches[number].dead)
        made = self.launches[number] = HostLaunch(self, number)
        made.is_later = True
        made.begin()

    def start_over(self, launch: HostLaunch) -> None:
        """Do what a service manager does with a launch that has ended by itself."""
        launch.is_over = True
        for process in self.processes:
            if process.alive and self.plan.host_of(process.name) == launch.number:
                process.kill()
        self.world.after(STARTED_AGAIN_AFTER, self.replace_host, launch.number)

    def kill_for_memory(self, process: WorldProcess) -> None:
        """Do what the kernel does when memory runs out: it counts, and kills."""
        self.oom_kills += 1
        self.oom_counter.write_text(f"oom_kill {self.oom_kills}\n")
        process.kill()
        (child,) = [child for child in self.children if child.name == process.name]
        # An operator's restart forgets the exits before it.
        self.world.after(5 * NOTICES_WITHIN, lambda: self.count_said(child))

    def count_said(self, child: Child) -> None:
        # Nobody is left to say so if the host has died since then. Of exits that were seen at once, any may be the one.
        at_once = [end for one in self.children for end in one.exits if child.exits and end.at == child.exits[-1].at]
        self.oom_said += child not in self.children or any(end.starved for end in at_once)

    # The parts that others look at.

    @property
    def children(self) -> list[Child]:
        return [child for launch in self.all_launches for child in launch.supervisor.children]

    @property
    def all_launches(self) -> list[HostLaunch]:
        return [*self.launches, *([] if self.next is None else [self.next])]

    @property
    def failure(self) -> LaunchError | None:
        return next((one.supervisor.failure for one in self.all_launches if one.supervisor.failure), None)

    @property
    def processes(self) -> list[WorldProcess]:
        """The processes that have not been reaped, in the order of the plan."""
        return those_of(WorldProcess, [one.process for child in self.children for one in child.processes])

    @property
    def all_workers(self) -> list[WorkerProcess]:
        """Those that have loaded, of every kind."""
        return [one for one in those_of(WorkerProcess, self.processes) if one.alive and one.worker]

    @property
    def workers(self) -> list[EngineProcess]:
        """Those that generate."""
        return those_of(EngineProcess, self.all_workers)

    @property
    def proxies(self) -> list[ProxyProcess]:
        return [one for one in those_of(ProxyProcess, self.processes) if one.alive and one.listens]

    @property
    def has_its_keys(self) -> bool:
        """True if all is whole, with the keys that the key file has now."""
        ours = None if self.secret is None else Keys.of(self.secret)
        workers = [one.loop.sockets.keys for one in self.all_workers if one.loop is not None]
        proxies = [one.proxy.link.keys for one in self.proxies if one.proxy is not None]
        return self.is_whole and all(keys == ours for keys in workers + proxies)

    @property
    def is_whole(self) -> bool:
        """True if every process serves, and every proxy knows every worker."""
        count = sum(len(child.plan.workers) for child in self.children if not child.plan.is_proxy)
        if any(launch.is_over for launch in self.launches):
            return False
        return all(child.state is ChildState.READY for child in self.children) and all(
            process.proxy is not None and len(process.proxy.registry.workers) == count for process in self.proxies
        )
