# SPDX-License-Identifier: Apache-2.0
"""The reports of a process of the world to its supervisor, over a real pipe."""

import selectors
from collections.abc import Callable

from pontil.launcher.child.reporter import PipeReporter
from pontil.launcher.child.reports import HeartbeatReport, Report
from pontil.runtime.wire.simulated.processes import WorldProcess


class ReadySelector(selectors.PollSelector):
    """A selector that shows what is ready, and leaves the waiting to the world. Its order is that of registration."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(0)


class WorldReporter(PipeReporter):
    """The reporter of one process: what it says reaches the pipe when its turn is there. Of heartbeats the supervisor
    hears when it looks."""

    def __init__(self, pipe: int, process: WorldProcess, wake: Callable[[], None]) -> None:
        super().__init__(pipe)
        self.process, self.wake = process, wake

    def start(self) -> None:
        """Send heartbeats, from a thread of its own."""
        self.process.job(self.process.world.now() + self.beat, self.beat_and_go_on)

    def beat_and_go_on(self) -> None:
        self.send_beat()
        self.start()

    def send(self, report: Report) -> None:
        self.process.acts(self.process.world.now(), lambda: self.arrive(report))

    def arrive(self, report: Report) -> None:
        super().send(report)
        if not isinstance(report, HeartbeatReport):
            self.wake()
