# SPDX-License-Identifier: Apache-2.0
"""Programs that other tests fork are like those that exec makes, as far as the system can tell."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command_line import app
from forked_program import ForkedProgram
from served import Served, cores, launched, wait_for

from pontil.runtime.foundation.number_ranges import spell

# Kinds of open files of which there are more or fewer as clients come and go; files with names are ports' and logs'.
OF_CONNECTIONS = ("/", "socket:", "anon_inode:[eventfd]")


def seen(process: psutil.Process) -> dict[str, object]:
    """Return what a process has from its start on: environment, directory, group, signals, kinds of open files, nice
    level."""
    folder = Path("/proc") / str(process.pid)
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line)
    files = [re.sub(r"\[?\d+\]?", "", str(file.readlink())) for file in (folder / "fd").iterdir()]
    return {
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "files": sorted(file for file in files if not file.startswith(OF_CONNECTIONS)),
        "environment": set((folder / "environ").read_bytes().rstrip(b"\0").split(b"\0")),
        "input": str((folder / "fd" / "0").readlink()), "niceness": process.nice(), "folder": process.cwd(),
    }  # fmt: skip


def processes(served: Served) -> dict[str, psutil.Process]:
    """Return those of a launch of one worker, by name; each of its children leads a session."""
    children = {one.pid: one for one in served.tree()[1:]}
    found = {name: children.pop(row["pid"]) for name, row in served.topology().items()}
    (fork_server,) = children.values()
    return found | {"fork server": fork_server}


@pytest.fixture
def heeds_quit() -> Iterator[None]:
    """Have a program that exec makes heed SIGQUIT, as one that is forked does: a shell's jobs in the background ignore
    it."""
    before = signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGQUIT, before)


@pytest.mark.long
@pytest.mark.usefixtures("heeds_quit")
def test_processes_are_those_that_exec_makes(tmp_path: Path, model: str) -> None:
    told = []
    for by_exec in (True, False):
        with launched(tmp_path, "--role", "mixed", "--model", model, by_exec=by_exec) as served:
            assert isinstance(served.process, ForkedProgram) is not by_exec
            wait_for(lambda: len(served.tree()) == 4, 30, "the end of other processes")  # noqa: B023
            told.append({name: seen(one) for name, one in processes(served).items()})
    assert told[0] == told[1]


def test_a_launch_has_the_cores_of_who_asks_for_it() -> None:
    """A test that limits its launch may be the first or a later one: the warm process has other cores."""
    ours = sorted(os.sched_getaffinity(0))
    for count in sorted({1, len(ours)}):
        with cores(count):
            done = app("launch", "--role", "mixed", "--dry-run", "--model", "synthetic")
        assert done.returncode == 0, done.stderr
        assert re.search(rf"mixed:0 +cpu +cores {spell(ours[-count:])}\n", done.stdout)
