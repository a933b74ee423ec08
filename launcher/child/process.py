# SPDX-License-Identifier: Apache-2.0
"""One process of a child: its pipes and the signs of health it gives. A restarted child gets a new one."""

import json
import os
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from pontil.launcher.child.activity import LOOK_EVERY, CpuActivity, is_busy
from pontil.launcher.child.exit_cause import KEPT_LINES, ExitCause, last_words
from pontil.launcher.child.health import HealthSigns
from pontil.launcher.child.reports import (
    FailureReport,
    HeartbeatReport,
    ProgressReport,
    ReadyReport,
    Report,
    SelfTestReport,
    decode,
)
from pontil.launcher.child.starter import ProcessStart, ProcessStarter, parent_word
from pontil.launcher.host.oom import OomWatch
from pontil.launcher.host.service_port import NOTHING
from pontil.launcher.logs.log_line import LogLine, read_line
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.runtime.foundation.line_pipe import LinePipe

OWNER_ONLY = 0o600


def memory_file(name: str, content: bytes) -> int:
    """Return the descriptor of a file with this content, to be read from its beginning, which only this user can open.
    It has no name in any folder, and is gone with the last process that has it open. Raises OSError."""
    with os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "wb") as file:
        os.fchmod(file.fileno(), OWNER_ONLY)
        file.write(content)
        file.seek(0)
        return os.dup(file.fileno())


STDERR = 2


class ChildProcess:
    """A process of a child, its pipes and what is known of it.

    The configuration is in a file in memory, never in argv, where every user of the machine could read it.
    """

    def __init__(
        self, plan: ChildPlan, starter: ProcessStarter, now: float, handed: Mapping[str, Sequence[int]] = NOTHING
    ) -> None:
        """Start the process, with the descriptors that are `handed` to it, by the fields of its configuration. Raises
        OSError when the system cannot create it; no other descriptor is left open then."""
        self.plan = plan
        configured_plan = plan.configured(**{name: list(files) for name, files in handed.items()})
        # The child's ends are closed here in any case, the others if there is no child.
        with ExitStack() as theirs, ExitStack() as ours:
            config = config_file(configured_plan)
            theirs.callback(os.close, config)
            reports, report_end = pipe(ours, theirs)
            output, output_end = pipe(ours, theirs)
            command_end, commands = pipe(theirs, ours)
            fds = [config, report_end, *([command_end] if plan.takes_commands else [])]
            flags = [f"--{name}-fd={fd}" for name, fd in zip(("config", "report", "commands"), fds, strict=False)]
            stdout = None if plan.keeps_terminal and os.isatty(STDERR) else output_end
            words = [plan.name, parent_word(), *flags]
            self.process = starter.start(ProcessStart(words, plan.threads, [*fds, *chain(*handed.values())], stdout))
            ours.pop_all()
        os.set_blocking(commands, False)
        self.reports, self.output, self.commands = LinePipe(reports), LinePipe(output), commands
        self.outbox = b""
        self.signs = HealthSigns(started_at=now, last_beat=now)
        self.activity: CpuActivity | None = None
        self.ready: ReadyReport | None = None
        self.start_seconds: float | None = None
        self.failure: str | None = None
        # Its last reported progress, and the reason why the supervisor kills it.
        self.progress: str | None = None
        self.complaint: str | None = None
        # Set when the supervisor kills it, and the cause of its end once it was reaped.
        self.killed = False
        self.ended: ExitCause | None = None
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        # Self-tests of a proxy: how many were requested, whether the last is still wanted, and its answer.
        self.tests = 0
        self.testing = False
        self.tested: SelfTestReport | None = None
        # The topology rows last sent to this process, so that it gets each change once.
        self.told: list[dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        return self.plan.name

    def hear(self, lines: Sequence[bytes], now: float) -> list[Report]:
        """Record the signs of health in these lines, and return the reports."""
        reports = [report for report in map(decode, lines) if report is not None]
        for report in reports:
            if isinstance(report, HeartbeatReport):
                self.signs = replace(self.signs, last_beat=now, step_age=report.age, working=report.working)
            elif isinstance(report, ProgressReport):
                self.progress = report.text
                self.signs = replace(self.signs, waits=report.waits)
            elif isinstance(report, SelfTestReport) and self.testing and report.number == self.tests:
                self.tested = report
            elif isinstance(report, FailureReport):
                self.failure = report.reason
            elif isinstance(report, ReadyReport):
                self.ready = report
                self.start_seconds = self.start_seconds or now - self.signs.started_at
                # Until the child is ready it waits for its other ranks.
                self.signs = replace(self.signs, last_beat=now, waits=True)
        if self.reports.closed and self.signs.closed_at is None:
            self.signs = replace(self.signs, closed_at=now)
        return reports

    def keep(self, lines: Sequence[bytes]) -> list[LogLine]:
        """Parse logged or printed lines, and keep the last of them for the message about its end."""
        entries = [read_line(self.name, line, time.time()) for line in lines]
        for entry in entries:
            self.last_lines.extend(entry.message.splitlines())
        return entries

    def excuse_silence(self, now: float) -> None:
        """Restart the silence timer: the supervisor has not been listening."""
        self.signs = replace(self.signs, last_beat=now)

    def observe(self, now: float) -> None:
        """Sample whether the process computes, which its silence does not tell. May be called often: samples are
        rate-limited."""
        before = self.activity
        if before is None or now - before.at >= LOOK_EVERY:
            self.activity = self.process.look(now)
            if before is not None and self.activity is not None and is_busy(before, self.activity):
                self.signs = replace(self.signs, busy_at=now)

    def send(self, message: dict[str, Any]) -> None:
        """Queue a command. Never blocks on a process that does not read: `flush` sends the rest later."""
        self.outbox += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):
            while self.outbox:
                self.outbox = self.outbox[os.write(self.commands, self.outbox) :]

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group."""
        self.process.signal(number)

    def kill(self) -> None:
        self.killed = True
        self.signal(signal.SIGKILL)

    def has_ended(self) -> bool:
        """Return whether the process has exited; it stays a zombie until `conclude`."""
        return self.process.has_ended()

    def conclude(self, now: float, oom: OomWatch) -> None:
        """Record the cause of its end, once it has ended and its pipes were read."""
        code = self.process.reap()
        out_of_memory = code == -signal.SIGKILL and not self.killed and oom.explains(now)
        follower = self.name if self.plan.is_follower else None
        words = last_words(list(self.last_lines))
        self.ended = ExitCause(now, code, self.failure, self.complaint, out_of_memory, words, follower)
        self.close()

    def close(self) -> None:
        self.reports.close()
        self.output.close()
        os.close(self.commands)


def pipe(reading: ExitStack, writing: ExitStack) -> tuple[int, int]:
    """Return the ends of a pipe, each of which is closed with its stack. Raises OSError."""
    ends = os.pipe()
    reading.callback(os.close, ends[0])
    writing.callback(os.close, ends[1])
    return ends


def config_file(plan: ChildPlan) -> int:
    """Return the descriptor of a file in memory with the whole configuration, however large it is."""
    child_config = {"role": plan.role, "cores": plan.cores, "config": plan.config}
    return memory_file("pontil-config", json.dumps(child_config).encode())
