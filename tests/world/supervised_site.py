# SPDX-License-Identifier: Apache-2.0
"""A launch in the world: the real supervisor, over processes of the world."""

import io
import json
import os
import selectors
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine_process import EngineProcess, TinyModel
from ghost_blocks import GhostRecords
from plain_process import PlainProcess
from processes import WorldProcess
from rank_process import DriverProcess, FollowerProcess
from served_proxy import ProxyProcess
from site_plan import SitePlan
from virtual_time import SeededWorld
from worker_process import WorkerProcess
from world_reporter import WorldReporter

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.starter import ProcessStart
from pontil.launcher.child.system_process import SystemProcess
from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.host.oom import OomWatch
from pontil.launcher.logs.console import Console
from pontil.launcher.options.worker_roles import EMBED, NODE
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.topology import Topology
from pontil.launcher.supervisor.supervisor import Orders, Supervisor
from pontil.runtime.config.proxy_config import proxy_config
from pontil.runtime.config.worker_config import worker_config
from pontil.runtime.foundation.line_pipe import LinePipe

# Roles of workers that make no tokens.
PLAIN_ROLES = (EMBED, NODE)
# Seconds until an event reaches the supervisor, or what it says a process.
NOTICES_WITHIN = 1e-3
# The machine of a launch, with cores for a few more workers than are planned, all of which have the first one.
MACHINE = HostDevices(cores=tuple(range(4)), quota=4, gpus=0)
# Seconds of a proxy's start, at least and at most.
PROXY_START = (0.6, 1.4)


class ReadySelector(selectors.PollSelector):
    """A selector that shows what is ready, and leaves the waiting to the world. Its order is that of registration."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(0)


class HostLaunch:
    """The launch of one host: the real supervisor, whose turns are events, and the starter of its processes. After the
    death of its host it `is_over`."""

    is_warming = False

    def __init__(self, site: "SupervisedSite", number: int) -> None:
        self.site, self.world, self.number = site, site.world, number
        self.chance = site.world.random("starts")
        self.pipes: dict[ProxyProcess, LinePipe] = {}
        plans, prepare = site.plan.child_plans(site.folder), ChildPlan("prepare", "prepare", "cpu", (), {})
        own = tuple(one for one in plans if site.plan.host_of(one.name) == number)
        self.supervisor = Supervisor(
            Orders(Topology(prepare, own, ("ipc:///world/control-0",), None), self, 30.0, machine=MACHINE),
            Console(io.StringIO()),
            RunDirectory(site.folder / f"run-{number}"), selector=ReadySelector(),
        )  # fmt: skip
        self.supervisor.oom = OomWatch(site.oom_counter)
        self.is_due = self.is_over = False
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
        self.supervisor.reconcile(self.world.now())
        self.world.after(NOTICES_WITHIN, self.hand_over)

    def wake(self) -> None:
        if not self.is_due:
            self.is_due = True
            self.world.after(NOTICES_WITHIN, self.woken)

    def woken(self) -> None:
        self.is_due = False
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
        elif told["config"]["rank"]:
            made = follower = FollowerProcess(self.world, name, self.site.ghosts)
            begin = self.begin_follower(follower, told["config"])
        elif told["role"] in PLAIN_ROLES:
            made = plain = PlainProcess(self.world, name, self.site.ghosts)
            begin = self.begin_plain(plain, told["config"], self.kept(made, given["--commands-fd"]))
        else:
            kind = DriverProcess if told["config"]["ranks"] > 1 else EngineProcess
            made = worker = kind(self.world, name, self.site.ghosts)
            if files := told["config"].get("kept_memory"):
                told["config"]["kept_memory"] = [self.kept(made, file) for file in files]
            begin = self.begin_worker(worker, told["config"], self.kept(made, given["--commands-fd"]))
        reporter = WorldReporter(self.kept(made, given["--report-fd"]), made, self.wake)
        made.at_death.append(self.wake)
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
        self.launches = [HostLaunch(self, number) for number in range(plan.hosts)]

    def begin(self) -> None:
        for launch in self.launches:
            launch.begin()

    def launch_of(self, name: str) -> HostLaunch:
        """Return the launch that has a process of this name."""
        return self.launches[self.plan.host_of(name)]

    def lose_host(self, number: int) -> None:
        """Have a host die without a word, with all that runs there."""
        launch = self.launches[number]
        launch.is_over = True
        launch.dead = [one for one in self.processes if one.alive and self.plan.host_of(one.name) == number]
        for process in launch.dead:
            process.vanish()

    def cut_power(self, number: int) -> None:
        """Have a host die so, and its disks lose what was not synced."""
        self.lose_host(number)
        self.world.disks.cut_power(number, self.plan.host_of)

    def replace_host(self, number: int) -> None:
        """Have a host that died begin again, or another machine at its address."""
        self.world.network.reset_dead(self.launches[number].dead)
        self.launches[number] = HostLaunch(self, number)
        self.launches[number].begin()

    def kill_for_memory(self, process: WorldProcess) -> None:
        """Do what the kernel does when memory runs out: it counts, and kills."""
        self.oom_kills += 1
        self.oom_counter.write_text(f"oom_kill {self.oom_kills}\n")
        process.kill()
        (child,) = [child for child in self.children if child.name == process.name]
        # An operator's restart forgets the exits before it.
        self.world.after(5 * NOTICES_WITHIN, lambda: self.count_said(child))

    def count_said(self, child: Child) -> None:
        # Nobody is left to say so if the host has died since then.
        self.oom_said += child not in self.children or bool(child.exits) and child.exits[-1].starved

    # The parts that others look at.

    @property
    def children(self) -> list[Child]:
        return [child for launch in self.launches for child in launch.supervisor.children]

    @property
    def failure(self) -> LaunchError | None:
        return next((one.supervisor.failure for one in self.launches if one.supervisor.failure), None)

    @property
    def processes(self) -> list[WorldProcess]:
        """The processes that have not been reaped, in the order of the plan."""
        running = [one.process for child in self.children for one in child.processes]
        return [one for one in running if isinstance(one, WorldProcess)]

    @property
    def all_workers(self) -> list[WorkerProcess]:
        """Those that have loaded, of every kind."""
        return [one for one in self.processes if isinstance(one, WorkerProcess) and one.alive and one.worker]

    @property
    def workers(self) -> list[EngineProcess]:
        """Those that generate."""
        return [one for one in self.all_workers if isinstance(one, EngineProcess)]

    @property
    def proxies(self) -> list[ProxyProcess]:
        return [one for one in self.processes if isinstance(one, ProxyProcess) and one.alive and one.listens]

    @property
    def is_whole(self) -> bool:
        """True if every process serves, and every proxy knows every worker."""
        count = sum(not child.plan.is_proxy for child in self.children)
        if any(launch.is_over for launch in self.launches):
            return False
        return all(child.state is ChildState.READY for child in self.children) and all(
            process.proxy is not None and len(process.proxy.registry.workers) == count for process in self.proxies
        )
