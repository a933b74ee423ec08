# SPDX-License-Identifier: Apache-2.0
"""Reports of steps to the supervisor, which tells by them a worker that computes from one that hangs."""

import time

from pontil.runtime.reporting import Reporter


class StepReporter:
    """A reporter of steps. `steps` is the number of completed ones, which took `nanoseconds` together."""

    def __init__(self, report: Reporter) -> None:
        self.report = report
        self.steps = self.nanoseconds = self.begun = 0
        self.told_of_work = False

    def begin(self) -> None:
        self.begun = time.monotonic_ns()
        self.tell(True)

    def end(self, has_work: bool) -> None:
        """Count a completed step and report it."""
        self.steps += 1
        self.nanoseconds += time.monotonic_ns() - self.begun
        self.tell(has_work)

    def counters(self) -> dict[str, int]:
        """Return the counts under their names in heartbeats."""
        return {"steps": self.steps, "step_microseconds": self.nanoseconds // 1000}

    def rest(self, may_step: bool) -> None:
        """Report that no work is left to step. Reported work may end without another step: all of it was cancelled, or
        it is held up because the proxy accepts no messages. Neither is a step that hangs."""
        if self.told_of_work and not may_step:
            self.tell(False)

    def tell(self, working: bool) -> None:
        self.told_of_work = working
        self.report.stepped(self.steps, working)
