# SPDX-License-Identifier: Apache-2.0
"""Python programs, forked from warm processes (warm_program.py), which each process of a test run starts once."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from select import select
from tempfile import TemporaryFile

from pontil.launcher.child.fork.fork_server import ForkServer
from pontil.launcher.child.starter import ExecStarter, ProcessStart
from pontil.launcher.child.system_process import SystemProcess
from pontil.launcher.options.options import read_environment

PROGRAM = Path(__file__).with_name("warm_program.py")
ROOT = Path(__file__).resolve().parents[3]
# Seconds for a program that is run to its end.
TIMEOUT = 120.0
# Room for the command line and for the variables of a fork, which are written over those of the warm process.
ROOM = "." * 4096


class ForkedProgram:
    """A program, with what tests use of subprocess.Popen."""

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
            raise subprocess.TimeoutExpired("program", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork_program(
    line: Sequence[str], folder: Path, files: Sequence[int], environment: Mapping[str, str],
    network: Path | None = None, computing: bool = True,
) -> ForkedProgram:  # fmt: skip
    """Start a program, given by its file and its words, in a folder and with this environment, on the cores of this
    process. `files` are its input, its output and where its errors go; `network` is a namespace to be in.
    `computing`: it or a process that it starts loads torch, or is a proxy."""
    told = {
        "line": list(line), "environment": dict(environment), "cores": sorted(os.sched_getaffinity(0)),
        "network": None if network is None else str(network),
    }  # fmt: skip
    with TemporaryFile() as file:
        file.write(json.dumps(told).encode())
        file.seek(0)
        directory = os.open(folder, os.O_DIRECTORY)
        given, output, errors = files
        try:
            passed = [directory, file.fileno(), given, errors]
            leader = warm_process("computing" if computing else "light").fork(
                ProcessStart([*map(str, passed)], 1, passed, output)
            )
        finally:
            os.close(directory)
    assert leader is not None, "the warm process has ended"
    return ForkedProgram(leader)


def run_program(
    line: Sequence[str], variables: Mapping[str, str] | None = None, folder: Path = ROOT, typed: str = "",
    timeout: float = TIMEOUT, computing: bool = False,
) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """Run a program to its end, with these variables added to the environment, and `typed` as its input."""
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile("w+")) for _ in range(3)]
        files[0].write(typed)
        files[0].seek(0)
        around = {**os.environ, **(variables or {})}
        process = fork_program(line, folder, [file.fileno() for file in files], around, computing=computing)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        for file in files:
            file.seek(0)
        return subprocess.CompletedProcess(line, code, files[1].read(), files[2].read())


@cache
def warm_process(kind: str) -> ForkServer:
    command = (sys.executable, str(PROGRAM), kind, ROOM)
    server = ForkServer(command, ExecStarter(command, environment))
    with selectors.DefaultSelector() as selector:
        server.open(selector, time.monotonic)
        while server.is_warming:
            for key, _ in selector.select(1.0):
                key.data()
    return server


def environment(threads: int | None) -> dict[str, str]:
    """Return the environment of the warm process: this one's, with what processes that compute need from their start
    on."""
    return {**read_environment().for_child(threads), "ROOM": ROOM}


def launch_environment() -> dict[str, str]:
    """Return the environment of launches here: workers have little KV memory by default, since it is mapped ahead of
    use."""
    return {"PONTIL_KV_CACHE_MEMORY": "128MiB", **os.environ}
