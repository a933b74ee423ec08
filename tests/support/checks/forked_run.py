# SPDX-License-Identifier: Apache-2.0
"""Tests in several processes at a time: the process that has collected them forks those that run them, so that what
tests import is imported once."""

import builtins
import json
import os
import signal
import traceback
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any
from warnings import WarningMessage

import pytest
from file_scheduling import WaitingFiles


class JsonPipe:
    """One end of a pipe for JSON values: what tests say is read as data and never as code."""

    def __init__(self, end: "Connection[bytes, bytes]") -> None:
        self.end = end

    def send(self, value: object) -> None:
        self.end.send_bytes(json.dumps(value, default=str).encode())

    def recv(self) -> Any:
        """Raises EOFError or ConnectionError where the other end is gone."""
        return json.loads(self.end.recv_bytes())


class FarHooks:
    """Has hooks called in the process that shows what becomes of tests."""

    def __init__(self, config: pytest.Config, pipe: JsonPipe) -> None:
        self.config, self.pipe = config, pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != "call" and report.duration < (self.config.option.durations_min or 0.0):
            return  # it is shown nowhere
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.pipe.send({"report": data})

    def pytest_warning_recorded(
        self, warning_message: WarningMessage, when: str, nodeid: str, location: object
    ) -> None:
        if when != "runtest":
            return  # it was recorded before the fork
        told = warning_message
        self.pipe.send({"warning": [str(told.message), told.category.__name__, told.filename, told.lineno, nodeid]})


class TestFork:
    """One process that runs tests, given by their places. `left` are those that it was told to run and has not begun,
    `running` the one that it began last."""

    def __init__(self, session: pytest.Session, number: int, others: Sequence["TestFork"]) -> None:
        self.left, self.running, self.is_done = list[int](), -1, False
        self.starts_processes = number % 2 == 0
        self.end_of_pipe, theirs = Pipe()
        self.pipe = JsonPipe(self.end_of_pipe)
        self.pid = os.fork()
        if not self.pid:
            for one in (self, *others):
                one.end_of_pipe.close()
            run_and_end(session, JsonPipe(theirs), number)
        theirs.close()

    def give(self, places: Sequence[int]) -> None:
        self.left += places
        self.pipe.send(list(places))

    def end(self, number: signal.Signals | None = None) -> None:
        """Wait for its end, or bring it about."""
        self.end_of_pipe.close()
        if number is not None:
            os.kill(self.pid, number)
        os.waitpid(self.pid, 0)


def run_and_end(session: pytest.Session, pipe: JsonPipe, number: int) -> None:
    """Be a fork: run tests, and nothing of what its parent would do next."""
    code = 1
    try:
        prepare(session.config, pipe, number)
        run_tests(session, pipe)
        code = 0
    except BaseException:  # also SystemExit of a test: its traceback is shown, and the fork ends
        traceback.print_exc()
    finally:
        os._exit(code)


def prepare(config: pytest.Config, pipe: JsonPipe, number: int) -> None:
    """Have a fork's own files for output, and a folder of its own: to number a folder, all that are there are read."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(FarHooks(config, pipe))
    folders = temporary_folders(config)
    folders._basetemp = folders.getbasetemp() / f"fork-{number}"
    folders._basetemp.mkdir()


def temporary_folders(config: pytest.Config) -> Any:
    untyped: Any = config
    return untyped._tmp_path_factory


def run_tests(session: pytest.Session, pipe: JsonPipe) -> None:
    """Run what is given. With the begin of the last test that it has, the fork `wants` more, so that what the next one
    shares with it is kept."""
    given: Sequence[int] = pipe.recv()
    while given:
        following: Sequence[int] = ()
        for place, after in pairwise([*given, -1]):
            pipe.send({"begins": place, "wants": after < 0})
            if after < 0 and (following := pipe.recv()):
                after = following[0]
            nextitem = session.items[after] if after >= 0 else None
            session.config.hook.pytest_runtest_protocol(item=session.items[place], nextitem=nextitem)
        given = following
    pipe.send(None)


class ForkedRun:
    """The tests of a session, run by so many forks at a time."""

    def __init__(self, session: pytest.Session, jobs: int, waiting: WaitingFiles) -> None:
        self.session, self.jobs, self.waiting = session, jobs, waiting
        self.forks, self.made = list[TestFork](), 0
        # The folder in which each fork makes its own.
        temporary_folders(session.config).getbasetemp()

    def run(self) -> None:
        """Run them all, unless too many fail."""
        try:
            for _ in range(self.jobs):
                self.begin()
            while self.forks:
                ready = wait([fork.end_of_pipe for fork in self.forks])
                for fork in [fork for fork in self.forks if fork.end_of_pipe in ready]:
                    self.hear(fork)
                if self.session.shouldfail:
                    raise self.session.Failed(self.session.shouldfail)
                if self.session.shouldstop:
                    raise self.session.Interrupted(self.session.shouldstop)
        finally:
            for fork in self.forks:
                fork.end(signal.SIGKILL)

    def begin(self, places: Sequence[int] = ()) -> None:
        """Have another fork run these tests first, or else those of a file that waits."""
        fork = TestFork(self.session, self.made, self.forks)
        self.made += 1
        self.forks.append(fork)
        fork.give(places or self.waiting.take(fork.starts_processes))

    def hear(self, fork: TestFork) -> None:
        try:
            said = fork.pipe.recv()
        except (EOFError, ConnectionError):
            self.forks.remove(fork)
            fork.end()
            self.go_on_after(fork)
            return
        if said is None:
            fork.is_done = True
        elif "report" in said:
            self.show(said["report"])
        elif "warning" in said:
            self.warn(*said["warning"])
        else:
            fork.running = said["begins"]
            fork.left.remove(fork.running)
            if said["wants"]:
                fork.give(self.waiting.take(fork.starts_processes))

    def go_on_after(self, fork: TestFork) -> None:
        """Have another fork do what is left, if this one has ended in the middle of a test, which has failed."""
        if fork.is_done:
            return
        assert fork.running >= 0, "a fork ended before its first test"
        test = self.session.items[fork.running]
        why = f"{test.nodeid}: its process has ended"
        report = pytest.TestReport(test.nodeid, test.location, {}, "failed", why, "call")
        self.session.config.hook.pytest_runtest_logreport(report=report)
        self.begin(fork.left)

    def show(self, data: dict[str, Any]) -> None:
        if isinstance(data.get("longrepr"), list):
            data["longrepr"] = tuple(data["longrepr"])  # file, line and reason of a test that was skipped
        hooks = self.session.config.hook
        hooks.pytest_runtest_logreport(
            report=hooks.pytest_report_from_serializable(config=self.session.config, data=data)
        )

    def warn(self, text: str, category: str, file: str, line: int, nodeid: str) -> None:
        kind = getattr(builtins, category, UserWarning)
        told = WarningMessage(kind(text), kind, file, line)
        given = {"warning_message": told, "when": "runtest", "nodeid": nodeid, "location": None}
        self.session.config.hook.pytest_warning_recorded.call_historic(kwargs=given)
