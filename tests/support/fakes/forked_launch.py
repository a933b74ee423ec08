# SPDX-License-Identifier: Apache-2.0
"""Launches that are forked from a warm process (warm_launch.py), which each process of a test run starts once."""

import os
import selectors
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from select import select
from typing import IO

from pontil.launcher.child.fork_server import ForkServer
from pontil.launcher.child.starter import ExecStarter, ProcessStart
from pontil.launcher.child.system_process import SystemProcess
from pontil.launcher.config.options import read_environment

PROGRAM = Path(__file__).with_name("warm_launch.py")


class ForkedLaunch:
    """A launch, with what tests use of subprocess.Popen."""

    def __init__(self, leader: SystemProcess) -> None:
        self.leader, self.pid = leader, leader.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self.leader.has_ended():
            self.returncode = self.leader.reap()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            end = os.pidfd_open(self.pid)
            try:
                select([end], [], [], timeout)
            finally:
                os.close(end)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("launch", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def forked_launch(words: list[str], folder: Path, output: "IO[bytes]") -> ForkedLaunch:
    """Start `app.py` with these words in a folder, on the cores of this process, which are not those of the warm one if
    either was limited meanwhile."""
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    directory = os.open(folder, os.O_DIRECTORY)
    try:
        asked = ProcessStart([str(directory), cores, *words], 1, [directory], output.fileno())
        leader = warm_process().fork(asked)
    finally:
        os.close(directory)
    assert leader is not None, "the warm process has ended"
    return ForkedLaunch(leader)


@cache
def warm_process() -> ForkServer:
    command = (sys.executable, str(PROGRAM))
    server = ForkServer(command, ExecStarter(command, environment))
    with selectors.DefaultSelector() as selector:
        server.open(selector, time.monotonic)
        while server.is_warming:
            for key, _ in selector.select(1.0):
                key.data()
    return server


def environment(threads: int | None) -> dict[str, str]:
    """Return the environment of the warm process: a launch's, with what processes that compute need from their start
    on."""
    return {**launch_environment(), **read_environment().for_child(threads)}


def launch_environment() -> dict[str, str]:
    """Return the environment of launches here: workers have little KV memory by default, since it is mapped ahead of
    use."""
    return {"PONTIL_KV_CACHE_MEMORY": "128MiB", **os.environ}
