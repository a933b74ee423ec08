# SPDX-License-Identifier: Apache-2.0
"""Forks of a real fork server: children like others, whose start imports nothing."""

import os
import select
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pontil.launcher.child.fork import fork_server
from pontil.launcher.child.fork.fork_server import ForkServer
from pontil.launcher.child.reporter import EXIT_ORPHANED
from pontil.launcher.child.starter import ExecStarter, ProcessStart
from pontil.launcher.child.system_process import GroupLeader, SystemProcess

ROOT = Path(__file__).resolve().parents[4]
# A server whose forks print what they are, write to the files that they were given, and wait.
SERVER = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
import app
from pontil.launcher.child.fork.forked import serve_forks
words = serve_forks(int(sys.argv[1].partition("=")[2]), int(sys.argv[2].partition("=")[2]))
if words is not None:
    print("forked", os.getppid(), os.getsid(0), os.environ["OMP_NUM_THREADS"], flush=True)
    for number in map(int, words[1:]):
        os.write(number, b"given")
    signal.pause()
"""


BY_EXEC = (sys.executable, "-c", "import signal; print('by exec', flush=True); signal.pause()")
THREADED = SERVER.replace("words =", "import threading; threading.Thread(target=signal.pause).start(); words =")
STARTER = ExecStarter(BY_EXEC, lambda threads: {"OMP_NUM_THREADS": str(threads)})
DEADLINE = 60.0
Warm = Callable[..., ForkServer]
Begin = Callable[..., tuple[SystemProcess, str]]


@pytest.fixture
def warm() -> Iterator[Warm]:
    """A function that opens a server and waits until it is ready, or has ended."""
    servers: list[ForkServer] = []

    def opened(script: str = SERVER, starter: ExecStarter = STARTER) -> ForkServer:
        selector = selectors.DefaultSelector()
        server = ForkServer((sys.executable, "-c", script), starter)
        servers.append(server)
        server.open(selector, time.monotonic)
        while server.is_warming:
            for key, _ in selector.select(DEADLINE):
                key.data()
        return server

    yield opened
    for server in servers:
        server.close()


@pytest.fixture
def begin() -> Iterator[Begin]:
    """A function that starts a process and returns the first line that it prints."""
    started: list[SystemProcess] = []

    def start(server: ForkServer, *inherited: int, threads: int | None = 3) -> tuple[SystemProcess, str]:
        reading, writing = os.pipe()
        asked = ProcessStart(["decode:0", *map(str, inherited)], threads, inherited, writing)
        started.append(server.start(asked))
        os.close(writing)
        assert select.select([reading], [], [], DEADLINE)[0]
        line = os.read(reading, 1000).decode().strip()
        os.close(reading)
        return started[-1], line

    yield start
    for process in started:
        if psutil.pid_exists(process.pid):
            process.reap()


def ended(process: SystemProcess) -> int:
    """Wait for its end; return its exit code."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process.reap()


def test_a_fork_is_a_child_that_leads_its_session(warm: Warm, begin: Begin) -> None:
    process, line = begin(warm())
    assert type(process) is GroupLeader
    assert line == f"forked {os.getpid()} {process.pid} 1"
    assert psutil.Process(process.pid).ppid() == os.getpid()
    assert not process.has_ended()
    process.signal(signal.SIGTERM)
    assert ended(process) == -signal.SIGTERM


def test_lists_of_processes_show_a_fork_as_what_it_is(warm: Warm, begin: Begin) -> None:
    process, _ = begin(warm())
    assert psutil.Process(process.pid).cmdline()[-1] == "decode:0"


def test_files_keep_their_numbers_whatever_those_are(warm: Warm, begin: Begin) -> None:
    server = warm()
    pipes = [os.pipe() for _ in range(40)]  # among them are the numbers that files have in the server
    given = [writing for _, writing in pipes]
    process, _ = begin(server, *given)
    for reading, writing in pipes:
        os.close(writing)
        assert select.select([reading], [], [], DEADLINE)[0] and os.read(reading, 100) == b"given"
    # It holds nothing else, so that the end of a pipe tells its end.
    assert len(os.listdir(f"/proc/{process.pid}/fd")) == 3 + len(given)
    process.signal(signal.SIGKILL)
    for reading, _ in pipes:
        assert select.select([reading], [], [], DEADLINE)[0] and os.read(reading, 100) == b""
        os.close(reading)


def test_a_process_that_does_not_compute_is_started_by_exec(warm: Warm, begin: Begin) -> None:
    _, line = begin(warm(), threads=None)
    assert line == "by exec"


@pytest.mark.parametrize("script", ["", "raise ImportError", THREADED], ids=["ends", "fails", "has a thread"])
def test_without_a_server_processes_are_started_by_exec(warm: Warm, begin: Begin, script: str) -> None:
    server = warm(script)
    assert not server.is_ready and begin(server)[1] == "by exec"


def test_threads_that_are_pinned_when_torch_is_loaded_are_not_forked(warm: Warm, begin: Begin) -> None:
    pinned = ExecStarter(BY_EXEC, lambda threads: {"OMP_PROC_BIND": "true"})
    assert begin(warm(SERVER, pinned))[1] == "by exec"


def test_a_server_that_is_killed_is_used_no_more(warm: Warm, begin: Begin) -> None:
    server = warm()
    assert server.process is not None
    server.process.signal(signal.SIGKILL)
    os.waitid(os.P_PID, server.process.pid, os.WEXITED | os.WNOWAIT)
    assert begin(server)[1] == "by exec" and not server.is_ready
    assert begin(server)[1] == "by exec"


def test_a_fork_that_comes_too_late_ends(warm: Warm, begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher gives up a server that hangs, and starts the process by exec: the fork must not be a second one."""
    server = warm()
    adopted: list[GroupLeader] = []

    def answered_too_late(self: ForkServer, request: bytes, descriptors: list[int]) -> None:
        answer = asked(self, request, descriptors)
        assert answer is not None
        adopted.append(GroupLeader(int(answer)))

    asked = ForkServer.ask
    monkeypatch.setattr(fork_server.ForkServer, "ask", answered_too_late)
    assert begin(server)[1] == "by exec"
    assert ended(adopted[0]) == EXIT_ORPHANED


def test_a_fork_lives_on_without_its_server(warm: Warm, begin: Begin) -> None:
    server = warm()
    process, _ = begin(server)
    server.close()
    assert not process.has_ended()
    process.signal(signal.SIGTERM)
    assert ended(process) == -signal.SIGTERM, "its own end"
