# SPDX-License-Identifier: Apache-2.0
"""The finding of processes by which other tests of whole systems kill them, with a table that lags behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_state import has_ended
from served import Served, wait_for
from slow_process import SlowProcess

# A launch as far as its processes go: two children, of which it reaps none.
LAUNCH = "import subprocess\nfor _ in range(2): print(subprocess.Popen(['sleep', '600']).pid, flush=True)\ninput()"


class LaggingTable(Served):
    """A launch that shows each of its tables once, and the last one from then on."""

    def __init__(self, process: "subprocess.Popen[bytes]", *tables: dict[str, dict[str, Any]]) -> None:
        super().__init__(process, 0, Path(), Path())
        self.tables = list(tables)

    def topology(self) -> dict[str, dict[str, Any]]:
        return self.tables.pop(0) if len(self.tables) > 1 else self.tables[0]


@pytest.fixture
def launch() -> Iterator["tuple[subprocess.Popen[bytes], list[int]]"]:
    command = [sys.executable, "-c", LAUNCH]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        yield process, pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        process.communicate(b"\n")


def ready(pid: int | None) -> dict[str, dict[str, Any]]:
    return {"decode:0": {"pid": pid, "state": "READY"}}


def test_a_row_of_a_process_that_has_ended_is_not_taken_for_its_successor(
    launch: "tuple[subprocess.Popen[bytes], list[int]]",
) -> None:
    process, (first, second) = launch
    starting = {"decode:0": {"pid": second, "state": "STARTING"}}
    served = LaggingTable(process, ready(first), ready(first), ready(None), starting, ready(second))
    found = served.living("decode:0")
    assert found.pid == first
    found.kill()
    assert served.living("decode:0", after=first).pid == second and served.tables == [ready(second)]
    wait_for(lambda: has_ended(first), 30, "its end as a zombie")
    assert LaggingTable(process, ready(first)).child("decode:0") is None


def test_a_process_of_another_tree_is_never_found(launch: "tuple[subprocess.Popen[bytes], list[int]]") -> None:
    process, _ = launch
    assert LaggingTable(process, ready(os.getpid())).child("decode:0") is None
    assert LaggingTable(process, {}).child("decode:0") is None


def test_a_rank_is_found_by_its_number(launch: "tuple[subprocess.Popen[bytes], list[int]]") -> None:
    process, (first, second) = launch
    ranks = {"decode:0": {"pid": first, "state": "READY", "ranks": [{"pid": first}, {"pid": second}]}}
    served = LaggingTable(process, ranks)
    assert [served.living("decode:0", rank).pid for rank in (0, 1)] == [first, second]
    assert served.child("decode:0", 2) is None


def test_a_process_that_was_slowed_may_have_been_killed_for_it() -> None:
    with subprocess.Popen(["sleep", "600"]) as one, SlowProcess(psutil.Process(one.pid)) as slow:
        slow.stop()
        assert not slow.has_ended
        one.kill()
        one.wait()
        slow.crawl()
        slow.stop()
        assert slow.has_ended


def test_a_process_may_end_between_two_looks_at_it() -> None:
    """psutil raises for one that was reaped after it was found, and has two ways to say that it is not there."""
    with subprocess.Popen(["sleep", "600"]) as one:
        found = psutil.Process(one.pid)
        assert not has_ended(found) and not has_ended(one.pid)
        one.kill()
        wait_for(lambda: found.status() == psutil.STATUS_ZOMBIE, 30, "a zombie")
        assert has_ended(found) and has_ended(one.pid)
    assert has_ended(found) and has_ended(one.pid)
