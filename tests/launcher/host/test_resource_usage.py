# SPDX-License-Identifier: Apache-2.0
"""Resource usage of real processes; GPU memory comes from a script in place of the driver's tool."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pontil.launcher.host.gpu_memory import EVERY as ASKED_EVERY
from pontil.launcher.host.gpu_memory import TIMEOUT, GpuMemory, parse
from pontil.launcher.host.resource_usage import EVERY, ResourceUsage

WaitUntil = Callable[[Callable[[], object]], None]
# Touches 64 MiB, prints a line, and computes until it is told to end.
BUSY = """
import sys
kept = b"x" * (64 << 20)
print("there", flush=True)
while True:
    sum(range(10000))
"""


@pytest.fixture
def busy() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


def test_a_process_is_measured_once_a_second(busy: int, waiting: WaitUntil) -> None:
    resource_usage, now = ResourceUsage(None), 100.0
    resource_usage.look([busy], now)
    first = resource_usage.usages[busy]
    assert first.rss_bytes > 64 << 20 and first.gpu_bytes is None
    resource_usage.look([busy, os.getpid()], now + EVERY / 2)
    assert set(resource_usage.usages) == {busy}, "between two looks nothing happens"

    def computes() -> bool:
        nonlocal now
        now += EVERY
        resource_usage.look([busy, os.getpid()], now)
        return resource_usage.usages[busy].cpu_percent > 0

    waiting(computes)
    assert set(resource_usage.usages) == {busy, os.getpid()}


def test_one_that_has_ended_is_not_shown(waiting: WaitUntil) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    resource_usage = ResourceUsage(None)
    resource_usage.look([ended.pid], 0.0)
    assert resource_usage.usages == {} and resource_usage.processes == {}
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    waiting(lambda: os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    resource_usage.look([zombie.pid], EVERY)
    assert zombie.pid not in resource_usage.usages or resource_usage.usages[zombie.pid].rss_bytes == 0
    zombie.wait()


def tool(folder: Path, body: str) -> GpuMemory:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return GpuMemory(str(path))


def test_memory_on_gpus_is_asked_and_never_waited_for(tmp_path: Path, waiting: WaitUntil) -> None:
    gpus = tool(tmp_path, 'echo "$@" > "$0.asked"; echo "11, 512"; echo "11, 100"; echo "12, [N/A]"')
    assert gpus.look(0.0) == {}
    waiting(lambda: gpus.look(1.0))
    assert gpus.bytes_of == {11: 612 << 20}
    assert (tmp_path / "nvidia-smi.asked").read_text().startswith("--query-compute-apps=pid,used_gpu_memory")
    assert gpus.query is None, "it is not asked again before its time"
    gpus.look(ASKED_EVERY)
    assert gpus.query is not None
    gpus.close()


def test_usage_has_the_memory_on_gpus(tmp_path: Path, waiting: WaitUntil) -> None:
    resource_usage, now = ResourceUsage(tool(tmp_path, f'echo "{os.getpid()}, 3"')), 0.0

    def told() -> bool:
        nonlocal now
        now += EVERY
        resource_usage.look([os.getpid()], now)
        return resource_usage.usages[os.getpid()].gpu_bytes is not None

    waiting(told)
    assert resource_usage.usages[os.getpid()].gpu_bytes == 3 << 20
    resource_usage.close()


def test_a_tool_that_hangs_is_ended_and_asked_again(tmp_path: Path) -> None:
    gpus = tool(tmp_path, "exec sleep 1000")
    gpus.look(0.0)
    hanging = gpus.query
    assert hanging is not None
    gpus.look(TIMEOUT - 1)
    assert gpus.query is hanging
    gpus.look(TIMEOUT)
    assert gpus.query is not hanging
    assert hanging.wait(60) == -9
    gpus.close()


def test_a_tool_whose_pipe_stays_open_holds_up_nobody(tmp_path: Path, waiting: WaitUntil) -> None:
    gpus = tool(tmp_path, 'echo "7, 1"; sleep 5 &')
    waiting(lambda: gpus.look(0.0))
    assert gpus.bytes_of == {7: 1 << 20}


@pytest.mark.parametrize("body", ["echo 7, 1; exit 9", "echo no devices were found"])
def test_a_tool_that_fails_tells_nothing(tmp_path: Path, waiting: WaitUntil, body: str) -> None:
    gpus = tool(tmp_path, body)
    gpus.look(0.0)
    asked = gpus.query
    assert asked is not None
    waiting(lambda: asked.poll() is not None)
    assert gpus.look(1.0) == {}
    assert GpuMemory(str(tmp_path / "none")).look(0.0) == {}


def test_lines_that_are_none_are_left_out() -> None:
    assert parse(["", "1, 2", "x, 3", "4", " 5 , 6 "]) == {1: 2 << 20, 5: 6 << 20}
