# SPDX-License-Identifier: Apache-2.0
"""Steps of every child before its role's body runs, seen from inside real children."""

import hashlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pontil.launcher.child.process import ChildProcess
from pontil.launcher.child.reporter import EXIT_ORPHANED
from pontil.launcher.child.reports import FailureReport, ReadyReport, decode
from pontil.launcher.child.starter import ExecStarter, SpawnedProcess
from pontil.launcher.keys.client_keys import MOST_KEYS, read_client_keys
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.roles import EXIT_BROKEN

DEADLINE = 60.0
SCRIPT = (sys.executable, str(Path(__file__).parent / "scripted_child.py"))
STARTER = ExecStarter(SCRIPT, lambda threads: {**os.environ, "OMP_NUM_THREADS": "1"})
Begin = Callable[..., ChildProcess]


@pytest.fixture
def begin() -> Iterator[Begin]:
    starts: list[ChildProcess] = []

    def start(script: list[str], role: str = "decode", cores: tuple[int, ...] = (0,)) -> ChildProcess:
        plan = ChildPlan(f"{role}:0", role, "cpu", cores, {"script": script, "model": "m", "trace": "/none"})
        starts.append(ChildProcess(plan, STARTER, 0.0))
        return starts[-1]

    yield start
    for running in starts:
        running.process.reap()
        running.close()


def reports(running: ChildProcess) -> Iterator[Any]:
    """Yield what the child reports until it ends, or for as long as any report of these tests may take."""
    deadline = time.monotonic() + DEADLINE
    while not running.reports.closed and time.monotonic() < deadline:
        select.select([running.reports], [], [], DEADLINE)
        yield from map(decode, running.reports.read())


def exit_code(running: ChildProcess) -> int:
    assert isinstance(running.process, SpawnedProcess)
    return running.process.process.wait(60)


def test_a_worker_runs_on_its_own_cores(begin: Begin) -> None:
    core = min(os.sched_getaffinity(0))
    running = begin(["ready"], cores=(core,))
    assert ReadyReport({"path": "m"}) in reports(running)
    assert psutil.Process(running.process.pid).cpu_affinity() == [core]


def test_a_thread_that_ends_by_a_fault_ends_its_child(begin: Begin) -> None:
    """The heartbeat thread fails here; without it the process would only look healthy. The log names the thread."""
    running = begin(["ready", "a heartbeat that fails"])
    list(reports(running))
    assert exit_code(running) == EXIT_BROKEN
    said = b"\n".join(running.output.read_rest()).decode()
    assert "the thread heartbeat ended by a fault" in said and "TypeError" in said and '"level": "critical"' in said


def test_a_child_is_told_nothing_on_its_command_line(begin: Begin) -> None:
    """Every user of the machine can read the command line."""
    running = begin(["ready"])
    assert ReadyReport({"path": "m"}) in reports(running)
    words = psutil.Process(running.process.pid).cmdline()[len(SCRIPT) :]
    assert words[0] == "decode:0" and all(re.fullmatch(r"--(parent|[a-z]+-fd)=\d+", word) for word in words[1:])


def test_a_child_gets_all_keys_that_a_file_may_have(tmp_path: Path) -> None:
    """The keys that a reload accepted are handed to the next process of a proxy."""
    settings = "weight=999.9999999 requests=2147483647 tokens=2147483647 rate=999999.99 token_rate=2147483646.5"
    path = tmp_path / "keys"
    path.write_text("".join(f"{number:064}={number:0512} {settings} priority=no\n" for number in range(MOST_KEYS)))
    path.chmod(0o600)
    keys = read_client_keys(LaunchOptions(api_keys=str(path)), {}).config
    config = {"script": ["digest of keys"], **keys}
    running = ChildProcess(ChildPlan("proxy", "proxy", "cpu", (), config), STARTER, 0.0)
    try:
        told = hashlib.sha256(json.dumps(keys).encode()).hexdigest()
        assert ReadyReport({"told": told}) in reports(running)
    finally:
        running.kill()
        running.process.reap()
        running.close()


def test_a_child_gets_the_descriptors_that_are_handed_to_it() -> None:
    reading, writing = os.pipe()
    config = {"script": ["write to the listener"]}
    handed = {"listeners": (writing,)}
    running = ChildProcess(ChildPlan("proxy", "proxy", "cpu", (), config), STARTER, 0.0, handed)
    os.close(writing)
    try:
        assert select.select([reading], [], [], DEADLINE)[0] and os.read(reading, 64) == b"handed"
    finally:
        os.close(reading)
        running.kill()
        running.process.reap()
        running.close()


def test_a_worker_leads_a_session_of_its_own(begin: Begin) -> None:
    running = begin(["ready"])
    assert os.getsid(running.process.pid) == running.process.pid != os.getsid(0)


def test_a_fault_of_the_world_is_reported_and_one_of_ours_logged(begin: Begin) -> None:
    world, ours = begin(["fail"]), begin(["bug"])
    assert FailureReport("there is no such model") in reports(world) and exit_code(world) == 1
    assert not [report for report in reports(ours) if isinstance(report, FailureReport)] and exit_code(ours) == 70
    said = b"\n".join(ours.output.read_rest())
    assert b"ValueError: a bug" in said and b"Traceback" not in b"\n".join(world.output.read_rest())


def test_a_child_whose_launcher_is_gone_already_does_nothing() -> None:
    plan = json.dumps({"role": "decode", "cores": [0], "config": {"script": ["ready"], "model": "m"}}).encode()
    config, config_end = os.pipe()
    heard, report = os.pipe()
    os.write(config_end, plan)
    os.close(config_end)
    flags = ["decode:0", "--parent=1", f"--config-fd={config}", f"--report-fd={report}"]
    done = subprocess.run([*SCRIPT, *flags], pass_fds=[config, report], timeout=60)
    os.close(report)
    assert done.returncode == EXIT_ORPHANED and os.read(heard, 1) == b""
    os.close(heard)
    os.close(config)


def test_a_child_that_cannot_report_ends(begin: Begin) -> None:
    running = begin(["ready"])
    assert ReadyReport({"path": "m"}) in reports(running)
    # Close the launcher's end, without ending the launcher.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), running.reports.fileno())
    assert exit_code(running) == EXIT_ORPHANED
