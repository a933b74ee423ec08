# SPDX-License-Identifier: Apache-2.0
"""A supervisor over processes that exist only here, in a time that passes only where it would wait."""

import io
import os
import selectors
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pontil.launcher.child.activity import CpuActivity
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.reports import HeartbeatReport, Report, encode
from pontil.launcher.child.starter import ProcessStart
from pontil.launcher.child.system_process import SystemProcess
from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.logs.console import Console
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.topology import Topology
from pontil.launcher.supervisor.restart_policy import RestartPolicy
from pontil.launcher.supervisor.supervisor import Orders, Supervisor

# Pids that no process has.
FIRST_PID = 1 << 23


class VirtualSelector(selectors.PollSelector):
    """A selector whose waits are over at once, at the time when they would be."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        self.now += 0.0 if ready else timeout or 0.0
        return ready


class PuppetProcess:
    """A process that reports and ends as the test says, and dies of SIGKILL."""

    def __init__(self, asked: ProcessStart, pid: int) -> None:
        self.pid, self.is_silent = pid, False
        self.code: int | None = None
        given = next(word for word in asked.words if word.startswith("--report-fd="))
        self.reports = os.dup(int(given.partition("=")[2]))

    def report(self, report: Report) -> None:
        os.write(self.reports, encode(report))

    def end(self, code: int) -> None:
        if self.code is None:
            self.code = code
            os.close(self.reports)

    def signal(self, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            self.end(-number)

    def has_ended(self) -> bool:
        return self.code is not None

    def reap(self) -> int:
        assert self.code is not None
        return self.code

    def look(self, now: float) -> CpuActivity | None:
        return None


class PuppetStarter:
    """A starter that makes puppets."""

    is_warming = False

    def __init__(self, make: Callable[[ProcessStart], PuppetProcess]) -> None:
        self.make = make

    def open(self, selector: selectors.BaseSelector, clock: Callable[[], float]) -> None:
        pass

    def start(self, asked: ProcessStart) -> SystemProcess:
        return self.make(asked)

    def close(self) -> None:
        pass


class VirtualSite:
    """A supervisor of a proxy and a worker, and of one for each `further` model, with the processes that it made. The
    models have so much `memory`."""

    def __init__(
        self, folder: Path, selector: VirtualSelector, further: Sequence[str] = (), memory: int | None = None
    ) -> None:
        self.made: list[PuppetProcess] = []
        self.selector, self.said = selector, io.StringIO()
        met = {"peer_endpoint": "ipc:///run/pontil/worker"}
        prepare, *self.plans = [ChildPlan(name, name, "cpu", (0,), met) for name in ("prepare", "proxy", "mixed")]
        self.plans[1] = replace(self.plans[1], name="mixed:0")
        for name in further:
            self.plans.append(ChildPlan(f"{name}-mixed:0", "mixed", "cpu", (0,), met | {"further_model": name}))
        topology = Topology(prepare, tuple(self.plans), ("ipc:///control",), None, model_memory=memory)
        orders = Orders(
            topology,
            PuppetStarter(self.spawn),
            30.0,
            RestartPolicy(attempts=3, first_delay=4.0),
            machine=HostDevices(tuple(range(4)), 4, 0),
        )
        directory = RunDirectory(folder)
        directory.create()
        self.supervisor = Supervisor(orders, Console(self.said), directory, selector=self.selector)

    def spawn(self, asked: ProcessStart) -> PuppetProcess:
        self.made.append(PuppetProcess(asked, FIRST_PID + len(self.made)))
        return self.made[-1]

    @property
    def states(self) -> list[ChildState]:
        return [child.state for child in self.supervisor.children]

    def turns(self, seconds: float) -> None:
        """Let so many seconds pass, in which every process lives on that is not silent."""
        end = self.selector.now + seconds
        while self.selector.now < end:
            self.supervisor.run_once()
            self.supervisor.reconcile(self.selector.now)
            for process in self.made:
                if process.code is None and not process.is_silent:
                    process.report(HeartbeatReport(1, 0.0, False))
                    self.selector.now += 0.1
