# SPDX-License-Identifier: Apache-2.0
"""Reports and output of children, read when they arrive and once more after an exit."""

import selectors
from collections.abc import Callable
from functools import partial

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.process import ChildProcess
from pontil.launcher.child.reports import ChangeReport, ProgressReport, ReadyReport, Report, UseReport
from pontil.launcher.host.oom import OomWatch
from pontil.launcher.logs.console import Console


class ChildStreams:
    """The pipes of each child process, in the `selector` for as long as they are open. Shows on the console the lines
    meant for operators. `take` is called with the changes that a proxy is asked for, and with the use of models."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        console: Console,
        clock: Callable[[], float],
        take: Callable[[ChildProcess, ChangeReport | UseReport], None],
    ) -> None:
        self.selector, self.console, self.clock, self.take = selector, console, clock, take

    def watch(self, child: Child) -> None:
        """Watch the pipes of the processes that have started."""
        for process in child.processes:
            self.selector.register(process.reports, selectors.EVENT_READ, partial(self.hear, child, process))
            self.selector.register(process.output, selectors.EVENT_READ, partial(self.echo, process))

    def hear(self, child: Child, process: ChildProcess) -> None:
        pipe = process.reports
        lines = pipe.read()
        if pipe.closed:
            self.selector.unregister(pipe)
            self.console.settle(process.name)
        was_ready = child.state is ChildState.READY
        for report in child.hear(process, lines, self.clock()):
            if isinstance(report, ChangeReport | UseReport):
                self.take(process, report)
            else:
                self.show(process, report, was_ready)

    def show(self, process: ChildProcess, report: Report, was_ready: bool) -> None:
        if isinstance(report, ProgressReport):
            self.console.progress(process.name, report.text)
        elif isinstance(report, ReadyReport) and process.plan.role != "prepare" and not was_ready:
            took = self.clock() - process.signs.started_at
            facts = "".join(f", {name.replace('_', ' ')} {value}" for name, value in report.facts.items())
            self.console.settle(process.name)
            self.console.child_line(process.name, f"ready after {took:.1f} s{facts}")

    def echo(self, process: ChildProcess) -> None:
        pipe = process.output
        lines = pipe.read()
        if pipe.closed:
            self.selector.unregister(pipe)
        for entry in process.keep(lines):
            self.console.entry(entry)

    def record_ends(self, child: Child, now: float, oom: OomWatch) -> bool:
        """Record the ends of its processes, each after reading all that it had written: that may name the cause. Return
        whether any of its processes has ended."""
        for process in child.processes:
            if process.has_ended():
                self.read_rest(child, process, now)
                child.record_end(process, now, oom)
        return child.group is not None and child.group.is_ending

    def read_rest(self, child: Child, process: ChildProcess, now: float) -> None:
        for pipe in (process.reports, process.output):
            if not pipe.closed:
                self.selector.unregister(pipe)
        child.hear(process, process.reports.read_rest(), now)
        for entry in process.keep(process.output.read_rest()):
            self.console.entry(entry)
