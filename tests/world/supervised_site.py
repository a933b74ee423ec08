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
from processes import WorldProcess
from rank_process import DriverProcess, FollowerProcess
from served_proxy import ProxyProcess
from site_plan import SitePlan
from virtual_time import SeededWorld
from world_reporter import WorldReporter

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.starter import ProcessStart
from pontil.launcher.child.system_process import SystemProcess
from pontil.launcher.config.child_plan import ChildPlan
from pontil.launcher.config.topology import Topology
from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.errors import LaunchError
from pontil.launcher.host.oom import OomWatch
from pontil.launcher.logs.console import Console
from pontil.launcher.supervisor.supervisor import Orders, Supervisor
from pontil.runtime.config import proxy_config, worker_config
from pontil.runtime.foundation.line_pipe import LinePipe

# Seconds until an event reaches the supervisor, or what it says a process.
NOTICES_WITHIN = 1e-3
# Seconds of a proxy's start, at least and at most.
PROXY_START = (0.6, 1.4)


class ReadySelector(selectors.PollSelector):
    """A selector that shows what is ready, and leaves the waiting to the world. Its order is that of registration."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(0)


class SupervisedSite:
    """The supervisor of one world, whose turns are events, and the starter of its processes."""

    is_warming = False

    def __init__(self, world: SeededWorld, plan: SitePlan, model: TinyModel, folder: Path) -> None:
        self.world, self.model, self.plan = world, replace(model, kv_heads=plan.kv_heads), plan
        self.chance = world.random("starts")
        self.ghosts = GhostRecords(world)
        self.pipes: dict[ProxyProcess, LinePipe] = {}
        plans, prepare = tuple(plan.child_plans(folder)), ChildPlan("prepare", "prepare", "cpu", (), {})
        self.supervisor = Supervisor(
            Orders(Topology(prepare, plans, ("ipc:///world/control-0",), None), self), Console(io.StringIO()),
            RunDirectory(folder / "run"), selector=ReadySelector(),
        )  # fmt: skip
        # The memory that the machine has left is none of the seed.
        self.supervisor.oom = OomWatch(Path("/nonexistent"))
        self.is_due = False

    def begin(self) -> None:
        self.supervisor.monitors = True
        self.supervisor.start(self.supervisor.orders.topology.children)
        self.look_again()

    def look_again(self) -> None:
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
        self.look()

    def hand_over(self) -> None:
        """Have the processes read the commands of the supervisor."""
        self.pipes = {process: pipe for process, pipe in self.pipes.items() if process.alive}
        for process, pipe in self.pipes.items():
            process.obey(pipe)
        for worker in self.workers:
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
            made = follower = FollowerProcess(self.world, name, self.ghosts)
            begin = self.begin_follower(follower, told["config"])
        else:
            kind = DriverProcess if told["config"]["ranks"] > 1 else EngineProcess
            made = worker = kind(self.world, name, self.ghosts)
            begin = self.begin_worker(worker, told["config"], self.kept(made, given["--commands-fd"]))
        reporter = WorldReporter(self.kept(made, given["--report-fd"]), made, self.wake)
        made.at_death.append(self.wake)
        self.world.note("start", made)
        reporter.start()
        seconds = self.chance.uniform(*(PROXY_START if told["role"] == "proxy" else self.plan.worker_start))
        made.job(self.world.now() + seconds, lambda: begin(reporter))
        return made

    def begin_proxy(self, process: ProxyProcess, config: dict[str, Any]) -> Callable[[WorldReporter], None]:
        return lambda reporter: process.begin(proxy_config(config), self.model.tokenizer, reporter)

    def begin_worker(
        self, process: EngineProcess, config: dict[str, Any], commands: int
    ) -> Callable[[WorldReporter], None]:
        return lambda reporter: process.begin(worker_config(config), self.model, self.plan.blocks, reporter, commands)

    def begin_follower(self, process: FollowerProcess, config: dict[str, Any]) -> Callable[[WorldReporter], None]:
        return lambda reporter: process.begin(worker_config(config), self.model, self.plan.blocks, reporter)

    def kept(self, process: WorldProcess, descriptor: int) -> int:
        """Return a process's own descriptor of a file that it inherits."""
        made = os.dup(descriptor)
        process.descriptors.add(made)
        return made

    # The parts that others look at.

    @property
    def children(self) -> list[Child]:
        return self.supervisor.children

    @property
    def failure(self) -> LaunchError | None:
        return self.supervisor.failure

    @property
    def processes(self) -> list[WorldProcess]:
        """The processes that have not been reaped, in the order of the plan."""
        running = [one.process for child in self.children for one in child.processes]
        return [one for one in running if isinstance(one, WorldProcess)]

    @property
    def workers(self) -> list[EngineProcess]:
        return [one for one in self.processes if isinstance(one, EngineProcess) and one.alive and one.worker]

    @property
    def proxies(self) -> list[ProxyProcess]:
        return [one for one in self.processes if isinstance(one, ProxyProcess) and one.alive and one.listens]

    @property
    def is_whole(self) -> bool:
        """True if every process serves, and every proxy knows every worker."""
        count = sum(not child.plan.is_proxy for child in self.children)
        return all(child.state is ChildState.READY for child in self.children) and all(
            process.proxy is not None and len(process.proxy.registry.workers) == count for process in self.proxies
        )
