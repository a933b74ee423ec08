# SPDX-License-Identifier: Apache-2.0
"""A launch in the world: the supervisor's own children, health and restart policy, over processes of the world."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from engine_process import EngineProcess, TinyModel
from ghost_blocks import GhostRecords
from processes import WorldProcess
from served_proxy import ProxyProcess
from site_plan import SitePlan
from virtual_time import HERE, SeededWorld

from pontil.launcher.child import rank_group
from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.exit_cause import ExitCause
from pontil.launcher.child.health import HealthLimits, HealthSigns
from pontil.launcher.child.reports import ReadyReport
from pontil.launcher.config.child_plan import ChildPlan
from pontil.launcher.host.oom import OomWatch
from pontil.launcher.logs.console import Console
from pontil.launcher.supervisor.process_table import row_of
from pontil.launcher.supervisor.recovery import Recovery
from pontil.launcher.supervisor.restart_policy import RestartPolicy
from pontil.launcher.supervisor.supervisor import PATIENCE

# Seconds until an event reaches the supervisor, or what it says a process.
NOTICES_WITHIN = 1e-3
# Seconds of a start, at least and at most.
PROXY_START, WORKER_START = (0.6, 1.4), (1.0, 3.0)


class NoConsole:
    """A console that nobody reads."""

    def line(self, text: str) -> None:
        return

    def child_line(self, name: str, text: str) -> None:
        return


class PipeOfReports:
    """The reports of one process to its supervisor: of what they say, the site needs only that it is ready."""

    def __init__(self, process: WorldProcess, child: "SiteChildProcess") -> None:
        self.process, self.child = process, child

    def ready(self, **facts: Any) -> None:
        self.process.acts(self.process.world.now(), lambda: self.child.report(ReadyReport(facts)))

    def progress(self, text: str, *, waits: bool = False) -> None:
        self.child.signs = replace(self.child.signs, waits=self.child.signs.waits or waits)

    def tested(self, number: int, routes: Sequence[dict[str, Any]]) -> None:
        return

    def failed(self, reason: str) -> None:
        return

    def settled(self, order: int, drained: bool) -> None:
        return

    def asked(self, number: int, request: dict[str, Any]) -> None:
        return

    def stepped(self, number: int, working: bool) -> None:
        return


class SitePid:
    """Stands for subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid


class SiteChildProcess:
    """Stands for ChildProcess: what the supervisor knows of one process of the world."""

    def __init__(
        self, plan: ChildPlan, command: Sequence[str], environment: Mapping[str, str], now: float,
        handed: Mapping[str, Sequence[int]],
    ) -> None:  # fmt: skip
        self.plan, self.site = plan, cast(SupervisedSite, HERE.world.site)
        self.signs = HealthSigns(started_at=now, last_beat=now)
        self.ready: ReadyReport | None = None
        self.start_seconds: float | None = None
        self.progress: str | None = None
        self.complaint: str | None = None
        self.ended: ExitCause | None = None
        self.killed = False
        self.code = -int(signal.SIGKILL)
        self.told: list[dict[str, Any]] | None = None
        self.outbox = b""
        self.world_process = self.site.spawn(self)
        self.process = SitePid(self.world_process.pid)

    @property
    def name(self) -> str:
        return self.plan.name

    def report(self, ready: ReadyReport) -> None:
        now = self.site.world.now()
        self.ready, self.start_seconds = ready, now - self.signs.started_at
        self.signs = replace(self.signs, last_beat=now, waits=True)
        self.site.wake()

    def beat(self, now: float) -> None:
        """Take its heartbeats, which come from a thread of their own as long as it is not stopped."""
        if self.world_process.alive and self.world_process.stopped_at is None:
            self.signs = replace(self.signs, last_beat=now)

    def observe(self, now: float) -> None:
        return

    def send(self, message: dict[str, Any]) -> None:
        target = self.world_process
        if isinstance(target, ProxyProcess):
            self.site.world.after(NOTICES_WITHIN, lambda: target.obey(message))

    def flush(self) -> None:
        return

    def signal(self, number: signal.Signals) -> None:
        self.kill()

    def kill(self) -> None:
        self.killed = True
        self.world_process.kill()

    def conclude(self, now: float, oom: OomWatch) -> None:
        self.ended = ExitCause(now, self.code, None, self.complaint)


class SupervisedSite:
    """The supervisor of one world: it does what `Supervisor.run_once` and `reconcile` do."""

    def __init__(self, world: SeededWorld, plan: SitePlan, model: TinyModel, folder: Path) -> None:
        self.world, self.plan, self.model, self.folder = world, plan, model, folder
        world.site = self
        self.chance = world.random("starts")
        self.ghosts = GhostRecords(world)
        self.limits, self.recovery = HealthLimits(), Recovery(RestartPolicy(), cast(Console, NoConsole()))
        self.oom = OomWatch(Path("/nonexistent"))
        self.children = [Child(one, (), lambda threads: {}) for one in plan.child_plans(folder)]
        self.ever: list[WorldProcess] = []
        self.is_due = False
        self.failure: Exception | None = None

    def begin(self) -> None:
        for child in self.children:
            child.start(self.world.now())
        self.tell()
        self.look_again()

    def look_again(self) -> None:
        self.run_once()
        self.world.after(PATIENCE, self.look_again)

    def wake(self) -> None:
        if not self.is_due:
            self.is_due = True
            self.world.after(NOTICES_WITHIN, self.woken)

    def woken(self) -> None:
        self.is_due = False
        self.run_once()

    def run_once(self) -> None:
        now = self.world.now()
        for child in [one for one in self.children if one.alive]:
            for process in child.processes:
                self.look_at(child, cast(Any, process), now)
            if child.alive and child.group is not None and not child.processes:
                child.settle_ends(now)
            elif child.judge(self.limits, now):
                child.kill()
        self.tell()
        for child in self.children:
            if child.state is ChildState.EXITED:
                self.failure = self.failure or self.recovery.answer(child, self.children, True, now)
            if child.is_due(now):
                child.start(now)
        self.tell()

    def look_at(self, child: Child, process: SiteChildProcess, now: float) -> None:
        if not process.world_process.alive:
            child.record_end(cast(Any, process), now, self.oom)
            return
        process.beat(now)
        if process.ready is not None and child.state is ChildState.STARTING:
            child.move(ChildState.READY)
            child.ever_ready, child.ready_at = True, now

    def tell(self) -> None:
        """Send each proxy each new table once."""
        now = self.world.now()
        rows = [row_of(child, {}, now) for child in self.children]
        for child in self.children:
            proxy: Any = child.running if child.plan.is_proxy else None
            if proxy is not None and proxy.told != rows:
                proxy.told = rows
                proxy.send({"kind": "table", "rows": rows})

    def spawn(self, child: SiteChildProcess) -> WorldProcess:
        """Start a process of the world. It begins its work when it has loaded what it needs."""
        made: WorldProcess
        begin: Any
        if child.plan.is_proxy:
            made = ProxyProcess(self.world, child.name)
            seconds, begin = self.chance.uniform(*PROXY_START), made.begin
            given: tuple[Any, ...] = (self.plan.proxy_config(child.plan), self.model.tokenizer)
        else:
            made = EngineProcess(self.world, child.name, self.ghosts)
            seconds, begin = self.chance.uniform(*WORKER_START), made.begin
            given = (self.plan.worker_config(child.plan), self.model, self.plan.blocks)
            made.exits = lambda reason: self.exited(child)
        self.ever.append(made)
        made.at_death.append(self.wake)
        self.world.note("start", made)
        reports = PipeOfReports(made, child)
        made.job(self.world.now() + seconds, lambda: begin(*given, reports))
        return made

    def exited(self, child: SiteChildProcess) -> None:
        child.code = 1
        child.world_process.kill()

    # The parts that others look at.

    @property
    def processes(self) -> list[WorldProcess]:
        """The processes that live, in the order of the plan."""
        return [cast(Any, child.running).world_process for child in self.children if child.running is not None]

    @property
    def workers(self) -> list[EngineProcess]:
        return [one for one in self.processes if isinstance(one, EngineProcess) and one.alive and one.worker]

    @property
    def proxies(self) -> list[ProxyProcess]:
        return [one for one in self.processes if isinstance(one, ProxyProcess) and one.alive and one.listens]

    @property
    def is_whole(self) -> bool:
        return all(child.state is ChildState.READY for child in self.children)


def use_site_processes() -> None:
    """Have children be processes of the world."""
    untyped: Any = rank_group
    untyped.ChildProcess = SiteChildProcess
