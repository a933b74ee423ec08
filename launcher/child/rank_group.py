# SPDX-License-Identifier: Apache-2.0
"""The processes of one child that run at the same time: one, or the ranks of a worker. They end together.

Nothing is replaced alone: a rank without the others cannot compute, and one that outlived them could meet those that
are started next.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.exit_cause import ExitCause
from pontil.launcher.child.health import HealthLimits, judge
from pontil.launcher.child.process import ChildProcess
from pontil.launcher.child.starter import ProcessStarter
from pontil.launcher.host.service_port import NOTHING
from pontil.launcher.plan.child_plan import ChildPlan

# Seconds that the other ranks get to end by themselves after one that ended in order, or because of another.
MOMENT = 2.0
# A silent child's CPU activity is sampled once its silence exceeds the limit divided by this.
LOOKS = 3


class GroupStep(Enum):
    """The next step with the processes of a child: none, wait for them to end, kill them, record the end."""

    NOTHING = "nothing"
    WAIT = "wait"
    KILL = "kill"
    RECORD = "record"


def next_step(causes: Sequence[ExitCause | None]) -> GroupStep:
    """Decide by how the ranks have ended, in their order; None for those that live. The cause of an end that is only a
    consequence is another rank's, which has a moment to say it."""
    if all(causes):
        return GroupStep.RECORD
    if not any(causes):
        return GroupStep.NOTHING
    return GroupStep.WAIT if all(cause is None or cause.is_consequence for cause in causes) else GroupStep.KILL


class RankGroup:
    """The processes, in the order of ranks. Those of workers get orders and signals to end: of one of several ranks the
    first, the driver, alone, and all that are data-parallel."""

    def __init__(
        self, plan: ChildPlan, starter: ProcessStarter, now: float, handed: Sequence[Mapping[str, Sequence[int]]] = ()
    ) -> None:
        """Start them all, or, with the driver's complaint that says why, only some. Raises OSError if there is none.
        `handed` has the descriptors for each rank, if there are any."""
        self.processes: list[ChildProcess] = []
        self.workers = len(plan.workers)
        # When those that live are killed, once others have ended.
        self.ends_by: float | None = None
        remove_meeting_point(plan)
        for rank, member in enumerate(plan.members):
            files = handed[rank] if handed else NOTHING
            try:
                self.processes.append(ChildProcess(member, starter, now, files))
            except OSError as error:
                if not self.processes:
                    raise
                self.processes[0].complaint = f"has no room for all of its ranks ({error.strerror})"
                break

    @property
    def driver(self) -> ChildProcess | None:
        """The first process; None once it has ended."""
        return None if self.processes[0].ended else self.processes[0]

    @property
    def serving(self) -> list[ChildProcess]:
        """The processes of workers that have not ended."""
        return [process for process in self.processes[: self.workers] if process.ended is None]

    @property
    def living(self) -> list[ChildProcess]:
        return [process for process in self.processes if process.ended is None]

    @property
    def is_ending(self) -> bool:
        """Return whether one of them has ended, and the others are to follow."""
        return len(self.living) < len(self.processes)

    @property
    def ready(self) -> bool:
        return all(process.ready is not None and process.ended is None for process in self.processes)

    @property
    def complaint(self) -> str | None:
        """The reason for which the supervisor kills it, if it does."""
        return next((process.complaint for process in self.processes if process.complaint), None)

    @property
    def progress(self) -> str | None:
        """The last reported progress of the first rank that is not ready."""
        return next((process.progress for process in self.processes if process.ready is None), None)

    def send(self, message: dict[str, Any]) -> None:
        for process in self.living:
            process.send(message)

    def silent(self, limits: HealthLimits, now: float) -> Iterator[ChildProcess]:
        """Yield the ranks that may have to be killed for their silence soon."""
        return (process for process in self.living if now - process.signs.last_beat > limits.silence / LOOKS)

    def judge(self, state: ChildState, limits: HealthLimits, now: float) -> ChildProcess | None:
        """Return a process because of which all must be killed, with its complaint, if there is one. The CPU activity
        of silent ones is sampled well before their deadline."""
        if state is ChildState.READY:
            for process in self.silent(limits, now):
                process.observe(now)
        for process in self.living:
            if complaint := judge(state, process.signs, limits, now):
                process.complaint = process.complaint or complaint
                return process
        return None

    def leave(self, now: float) -> bool:
        """Have the others end after one that has; return whether their time is over. Followers are asked to if the
        driver has left in order, and left alone if it lost one: that one may be about to say why."""
        if self.ends_by is None:
            self.ends_by = now + MOMENT
            first = self.processes[0].ended
            for process in self.living if first is not None and first.code == 0 else ():
                process.signal(signal.SIGTERM)
        return now >= self.ends_by

    def kill(self) -> None:
        for process in self.living:
            process.kill()

    def cause(self) -> ExitCause:
        """Return the cause of the end of all of them, once all have ended: that of the first to end for a reason of its
        own."""
        causes = {weight(process): process.ended for process in reversed(self.processes) if process.ended}
        cause, first = causes[min(causes)], self.processes[0].ended
        # The first one has the child's name, also where the driver is on another host.
        return replace(cause, follower=None) if cause is first else cause


def weight(process: ChildProcess) -> tuple[int, float]:
    """Return a smaller value for a process that is more likely the cause of the group's end. Pipes are read in the
    order in which they ended."""
    assert process.ended is not None
    closed_at = process.signs.closed_at
    if process.complaint is not None:
        likely = 0
    elif process.killed:
        likely = 3
    else:
        likely = 2 if process.ended.is_consequence else 1
    return likely, float("inf") if closed_at is None else closed_at


def remove_meeting_point(plan: ChildPlan) -> None:
    """Remove the socket file at which the ranks of an earlier incarnation met."""
    endpoint = plan.config.get("rank_endpoint")
    if endpoint is not None:
        with suppress(OSError):
            Path(str(endpoint).removeprefix("ipc://")).unlink()
