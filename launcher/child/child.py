# SPDX-License-Identifier: Apache-2.0
"""A child of the supervisor: its plan, its state, its running processes and its past exits."""

import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pontil.launcher.child.child_state import ChildState, DrainState, moved
from pontil.launcher.child.exit_cause import ExitCause
from pontil.launcher.child.health import HealthLimits
from pontil.launcher.child.kept_memory import KeptMemory, SharedWeights
from pontil.launcher.child.process import ChildProcess
from pontil.launcher.child.rank_group import GroupStep, RankGroup, next_step
from pontil.launcher.child.reports import OrderReport, Report
from pontil.launcher.child.starter import ProcessStarter
from pontil.launcher.host.oom import OomWatch
from pontil.launcher.host.service_port import NOTHING
from pontil.launcher.plan.child_plan import ChildPlan

# Exits to remember: one more than the restarts that can be asked for, so no policy looks at more.
REMEMBERED_EXITS = 1001


class Child:
    """One child, started and ended as a whole: a process, or the ranks of a worker. `group` is set exactly while a
    process exists, that is, while `state.alive`."""

    def __init__(
        self,
        plan: ChildPlan,
        starter: ProcessStarter,
        handed: Mapping[str, Sequence[int]] = NOTHING,
        weights: SharedWeights | None = None,
    ) -> None:
        """Name the child. `handed` are the launcher's descriptors that each process of a proxy gets, and `weights` has
        those that workers share."""
        self.plan = plan
        self.handed, self.weights = handed, weights
        self.starter = starter
        # The initial state is that of a child that exited long ago and whose restart is due.
        self.state = ChildState.BACKOFF
        self.due = 0.0
        self.group: RankGroup | None = None
        self.starts = 0
        self.exits: deque[ExitCause] = deque(maxlen=REMEMBERED_EXITS)
        # Those of `plan.workers`, in order, as often as they have ended.
        self.ended_pids: deque[tuple[int, ...]] = deque(maxlen=REMEMBERED_EXITS)
        # The plan of the process that was last ready.
        self.proven: ChildPlan | None = None
        # The drain timeout of its last order (None: to serve), whether it is to end for good then, and the number of
        # orders given.
        self.drain: float | None = None
        self.for_good = False
        self.order = 0
        # The last order that each process of a worker confirmed, by its name.
        self.settled: dict[str, OrderReport] = {}
        # Set when it is to end, so that its exit neither counts as a failure nor leads to a restart.
        self.dismissed = False
        # Set when it is to end and to rest until it is woken.
        self.sleeps = False
        # The facts of its last ready report, and when this process gave it.
        self.facts: dict[str, Any] = {}
        self.ready_at: float | None = None
        self.memory = KeptMemory(plan.ranks if plan.keeps_memory else 0)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def alive(self) -> bool:
        return self.state.alive

    @property
    def running(self) -> ChildProcess | None:
        """Its process, for a worker of several ranks the driver's."""
        return self.group.driver if self.group else None

    @property
    def processes(self) -> Sequence[ChildProcess]:
        """All of its processes that have not ended."""
        return self.group.living if self.group else ()

    @property
    def serving(self) -> Sequence[ChildProcess]:
        """Its processes that are workers to others, as far as they have not ended."""
        return self.group.serving if self.group else ()

    @property
    def pid(self) -> int | None:
        return self.running.process.pid if self.running else None

    @property
    def obeys(self) -> bool:
        """Return whether its processes have confirmed their last order."""
        reports = [self.settled.get(worker.name) for worker in self.plan.workers]
        return all(self.order == (0 if report is None else report.order) for report in reports)

    @property
    def ever_ready(self) -> bool:
        return self.proven is not None

    @property
    def has_new_keys(self) -> bool:
        """Return whether it starts with other keys than those with which it was last ready."""
        return self.proven is not None and self.proven.config.get("keys") != self.plan.config.get("keys")

    @property
    def drain_state(self) -> DrainState:
        if self.drain is None:
            return DrainState.WORKING
        is_drained = self.obeys and all(report.drained for report in self.settled.values())
        return DrainState.DRAINED if is_drained else DrainState.DRAINING

    @property
    def row(self) -> dict[str, Any]:
        """Return the fields that are always known, of a worker of several ranks for each of them too."""
        plan, idle = self.plan, self.state is ChildState.READY and self.drain_state is not DrainState.WORKING
        state = self.drain_state.value if idle else self.state.value
        row = {"name": plan.name, "role": plan.role, "pid": self.pid, "state": state, "device": plan.place}
        row |= {} if plan.further_model is None else {"model": plan.further_model}
        return row | ({"ranks": rank_rows(self)} if plan.followers else {})

    @property
    def reason(self) -> str | None:
        """Return why it is not ready, as far as is known."""
        if self.group is None:
            return self.exits[-1].describe() if self.exits else None
        return self.group.complaint or (self.group.progress if self.state is ChildState.STARTING else None)

    def move(self, state: ChildState) -> None:
        self.state = moved(self.name, self.state, state)

    def start(self, now: float) -> None:
        """Start its processes. Raises OSError if the system cannot create one; the child's state is then unchanged."""
        assert self.group is None
        self.group = RankGroup(self.plan, self.starter, now, self.descriptors())
        self.starts += 1
        self.settled, self.ready_at = {}, None
        self.move(ChildState.STARTING)
        if self.order:
            self.send_order()
        if self.group.complaint:
            self.kill()

    def descriptors(self) -> list[Mapping[str, Sequence[int]]]:
        """Return the launcher's descriptors for each of its processes."""
        kept_memory: list[Mapping[str, Sequence[int]]] = [{"kept_memory": files} for files in self.memory.begin()]
        weights = [NOTHING if self.weights is None else self.weights.handed(member) for member in self.plan.members]
        return [
            {**self.handed, **memory_fds, **weight_fds}
            for memory_fds, weight_fds in zip(kept_memory or [NOTHING] * len(weights), weights, strict=True)
        ]

    def assign(self, role: str, drain: float | None, *, for_good: bool = False) -> None:
        """Give a worker, never a proxy, its role and drain order, for this process and its restarts. One that drains
        `for_good` ends then, and has no successor."""
        assert not self.plan.is_proxy
        self.plan = self.plan.in_role(role)
        self.drain, self.for_good, self.order = drain, for_good, self.order + 1
        self.send_order()

    def set_log_level(self, level: str) -> None:
        """Set the log level of its processes and their restarts."""
        self.plan = self.plan.configured(log_level=level)
        if self.group and self.plan.takes_commands:
            self.group.send({"kind": "log_level", "level": level})

    def send_order(self) -> None:
        order = {"kind": "role", "order": self.order, "role": self.plan.role, "sleeps": self.sleeps}
        for process in self.serving:
            process.send({**order, "drain": self.drain, "for_good": self.for_good})

    def hear(self, process: ChildProcess, lines: Sequence[bytes], now: float) -> list[Report]:
        """Take the reports of one of its processes. It is ready when all of them are."""
        assert self.group is not None
        reports = process.hear(lines, now)
        driver = self.group.processes[0]
        if self.group.ready and self.state is ChildState.STARTING:
            self.move(ChildState.READY)
            self.proven, self.ready_at, self.facts = driver.plan, now, driver.ready.facts if driver.ready else {}
        for report in reports:
            if isinstance(report, OrderReport):
                self.settled[process.name] = report
        return reports

    def is_silent(self, limits: HealthLimits, now: float) -> bool:
        """Return whether it may have to be killed for the silence of a process soon."""
        return self.group is not None and self.state is ChildState.READY and any(self.group.silent(limits, now))

    def judge(self, limits: HealthLimits, now: float) -> ChildProcess | None:
        """Return a process, with its complaint, because of which it must be killed, if there is one."""
        return self.group.judge(self.state, limits, now) if self.group else None

    def stop(self) -> None:
        """Ask it to end. A child that is not yet ready has no requests, so it is killed."""
        if self.state is ChildState.STARTING:
            self.kill()
        elif self.state is ChildState.READY:
            self.move(ChildState.DRAINING)
        if self.state is ChildState.DRAINING:
            for process in self.serving:
                process.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all of its processes at once."""
        if self.state is ChildState.READY:
            self.move(ChildState.STALE)
        if self.state is not ChildState.KILLED:
            self.move(ChildState.KILLED)
        if self.group:
            self.group.kill()

    def record_end(self, process: ChildProcess, now: float, oom: OomWatch) -> None:
        """Record the end of one process, once its pipes were read."""
        process.conclude(now, oom)
        if self.state is ChildState.READY and len(self.processes):
            self.move(ChildState.STALE)

    def settle_ends(self, now: float) -> None:
        """End the other processes after one that has ended, and record the exit once all have."""
        assert self.group is not None
        step = next_step([process.ended for process in self.group.processes])
        if step is GroupStep.RECORD:
            cause = self.group.cause()
            workers = self.group.processes[: self.group.workers]
            self.ended_pids.append(tuple(process.process.pid for process in workers))
            if not self.sleeps:
                self.exits.append(cause)
            if not self.sleeps or cause.violent:
                self.memory.end(cause, None if self.ready_at is None else now - self.ready_at)
            self.group = None
            self.move(ChildState.EXITED)
        elif step is GroupStep.KILL or (step is GroupStep.WAIT and self.group.leave(now)):
            self.kill()

    def wait_or_give_up(self, delay: float | None, now: float) -> None:
        """Start again `delay` seconds after an exit, or (None) never."""
        self.move(ChildState.BACKOFF)
        if delay is None:
            self.memory.close()
            self.move(ChildState.GIVEN_UP)
        else:
            self.due = now + delay

    def go_to_sleep(self, drain: float) -> None:
        """Have it end once it has no requests, or at once where it serves none."""
        if self.state is ChildState.BACKOFF:
            self.rest()
        elif self.alive:
            self.sleeps = True
            self.assign(self.plan.role, drain)
            if self.state is not ChildState.READY:
                self.stop()

    def rest(self) -> None:
        """Rest until it is woken. What its processes kept in memory stays. Sleep is no death: the start after it is
        none that follows a fault."""
        self.sleeps, self.starts = False, max(0, self.starts - 1)
        if self.state is ChildState.EXITED:
            self.move(ChildState.BACKOFF)
        self.move(ChildState.ASLEEP)

    def rise(self, now: float) -> None:
        """Start it again if it sleeps, with the order that it has."""
        if self.state is ChildState.ASLEEP:
            self.move(ChildState.BACKOFF)
            self.due = now

    def wake(self, now: float) -> None:
        """Start it again, or have it take requests again where it has not ended."""
        self.rise(now)
        if self.drain is not None and self.state in (ChildState.BACKOFF, ChildState.READY):
            self.sleeps = False
            self.assign(self.plan.role, None)

    def is_due(self, now: float) -> bool:
        return self.state is ChildState.BACKOFF and now >= self.due


def rank_rows(child: Child) -> list[dict[str, Any]]:
    """Return the fields that are always known of a worker's ranks. One that is ready may have to wait for the
    others."""
    started_processes = child.group.processes if child.group else []
    processes = [*started_processes, *[None] * (child.plan.ranks - len(started_processes))]
    return [
        {
            "rank": rank,
            "name": plan.name,
            "device": plan.device,
            "state": rank_state(child, process),
            "pid": process.process.pid if process and process.ended is None else None,
        }
        for rank, (plan, process) in enumerate(zip(child.plan.members, processes, strict=True))
    ]


def rank_state(child: Child, process: ChildProcess | None) -> str:
    state = child.state
    if process is not None and process.ended:
        state = ChildState.EXITED
    elif process is not None and process.ready and state is ChildState.STARTING:
        state = ChildState.READY
    return str(state.value)


def child_command(name: str = "child") -> tuple[str, ...]:
    """Return how this installation starts a child: by app.py in a checkout, else by the installed module."""
    app = Path(__file__).resolve().parents[2] / "app.py"
    return (sys.executable, str(app), name) if app.exists() else (sys.executable, "-m", "pontil.launcher", name)
