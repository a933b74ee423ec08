# SPDX-License-Identifier: Apache-2.0
"""A child of the supervisor: its plan, its state, the life it is living and the deaths it has died."""

import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pontil.launcher.child_state import ChildState, moved
from pontil.launcher.errors import LaunchError, RefusedError
from pontil.launcher.health import HealthLimits, judge
from pontil.launcher.life import Life
from pontil.launcher.log_line import LogLine, read_line
from pontil.launcher.reports import Report
from pontil.launcher.topology import ChildPlan

LAST_LINES = 20


@dataclass(frozen=True, slots=True)
class Death:
    """How a life ended: the exit code as subprocess gives it, and the reason the child itself reported, if it did."""

    at: float
    code: int
    failure: str | None

    @property
    def refused(self) -> bool:
        """Whether the proxy refused it: started again in the same way, it would be refused again."""
        return self.failure is not None and self.code == RefusedError.exit_code

    @property
    def error(self) -> type[LaunchError]:
        """What a launch raises that ends because of it."""
        return RefusedError if self.refused else LaunchError

    def describe(self) -> str:
        """In words that follow a name."""
        if self.failure is not None:
            return f"failed: {self.failure}"
        if self.code >= 0:
            return f"exited with code {self.code}"
        known = self.code in {-each for each in signal.Signals}
        return f"was killed by {signal.Signals(-self.code).name if known else f'signal {-self.code}'}"


class Child:
    """`life` is there exactly while a process is, that is, while `state.alive`."""

    def __init__(self, plan: ChildPlan, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.plan = plan
        self.command = command
        self.environment = environment
        # As if it had died long ago and its restart were due.
        self.state = ChildState.BACKOFF
        self.due = 0.0
        self.life: Life | None = None
        self.deaths: list[Death] = []
        self.ever_ready = False
        # What it said of itself when it last became ready.
        self.facts: dict[str, Any] = {}
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def alive(self) -> bool:
        return self.state.alive

    @property
    def row(self) -> dict[str, Any]:
        """The child as the proxy's topology shows it."""
        pid = self.life.process.pid if self.life else None
        plan = self.plan
        return {"name": plan.name, "role": plan.role, "pid": pid, "state": self.state.value, "device": plan.device}

    def move(self, state: ChildState) -> None:
        self.state = moved(self.name, self.state, state)

    def start(self, now: float) -> None:
        """Raises OSError when the system cannot make a process; the child then is where it was."""
        assert self.life is None
        self.life = Life(self.plan, self.command, self.environment, now)
        self.last_lines.clear()
        self.move(ChildState.STARTING)

    def hear(self, lines: Sequence[bytes], now: float) -> list[Report]:
        assert self.life is not None
        heard = self.life.hear(lines, now)
        if self.life.ready is not None and self.state is ChildState.STARTING:
            self.move(ChildState.READY)
            self.ever_ready, self.facts = True, self.life.ready.facts
        return heard

    def keep(self, lines: Sequence[bytes]) -> list[LogLine]:
        """What it logged or printed, the last of it kept for the message about a death."""
        entries = [read_line(self.name, line, time.time()) for line in lines]
        for entry in entries:
            self.last_lines.extend(entry.message.splitlines())
        return entries

    def complaint(self, limits: HealthLimits, now: float) -> str | None:
        """Why it must be killed, if it must."""
        return judge(self.state, self.life.signs, limits, now) if self.life else None

    def stop(self) -> None:
        """Ask it to end. One that has not become ready holds nothing worth an orderly end."""
        if self.state is ChildState.STARTING:
            self.kill()
        elif self.state is ChildState.READY:
            self.move(ChildState.DRAINING)
        if self.state is ChildState.DRAINING and self.life:
            self.life.signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.state is ChildState.READY:
            self.move(ChildState.STALE)
        if self.state is not ChildState.KILLED:
            self.move(ChildState.KILLED)
        if self.life:
            self.life.signal(signal.SIGKILL)

    def bury(self, now: float) -> Death:
        """Once its life has ended and its pipes were read."""
        assert self.life is not None
        death = Death(now, self.life.reap(), self.life.failure)
        self.life.close()
        self.life = None
        self.move(ChildState.EXITED)
        self.deaths.append(death)
        return death

    def wait_or_give_up(self, delay: float | None, now: float) -> None:
        """After a death: start again after `delay` seconds, or (None) never."""
        self.move(ChildState.BACKOFF)
        if delay is None:
            self.move(ChildState.GIVEN_UP)
        else:
            self.due = now + delay

    def is_due(self, now: float) -> bool:
        return self.state is ChildState.BACKOFF and now >= self.due


def child_command() -> tuple[str, ...]:
    """How this installation starts a child: by app.py in a checkout, else by the installed module."""
    app = Path(__file__).resolve().parent.parent / "app.py"
    return (sys.executable, str(app), "child") if app.exists() else (sys.executable, "-m", "pontil.launcher", "child")
