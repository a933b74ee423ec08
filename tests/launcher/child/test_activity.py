# SPDX-License-Identifier: Apache-2.0
"""CPU activity of a silent process: the kernel's figures tell a busy one from a dead one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pontil.launcher.child.activity import BUSY_SHARE, CpuActivity, is_busy, look

DEADLINE = 60.0
SPIN, SLEEP = "while True: pass", "import threading; threading.Event().wait()"


@pytest.mark.parametrize(
    ("seconds", "cpu", "runnable", "busy"),
    [
        (1.0, 1.0, (False, False), True),
        (1.0, BUSY_SHARE, (False, False), True),
        (1.0, 0.1, (False, True), False),
        (1.0, 0.0, (True, True), True),
        (0.2, 0.01, (True, False), False),
        (0.0, 0.0, (False, False), False),
    ],
)
def test_computing_or_wanting_to_twice_is_busy(
    seconds: float, cpu: float, runnable: tuple[bool, bool], busy: bool
) -> None:
    assert is_busy(CpuActivity(10.0, 5.0, runnable[0]), CpuActivity(10.0 + seconds, 5.0 + cpu, runnable[1])) is busy


@contextmanager
def process(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{program}"], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None and one.stdout.readline()
        try:
            yield one.pid
        finally:
            one.kill()


def becomes(pid: int, busy: bool) -> None:
    """Sample until two successive samples agree with `busy`."""
    until, before = time.monotonic() + DEADLINE, look(pid, time.monotonic())
    while True:
        assert time.monotonic() < until
        time.sleep(0.2)  # the kernel counts time: there is nothing to wait on
        after = look(pid, time.monotonic())
        assert before is not None and after is not None
        if is_busy(before, after) is busy:
            return
        before = after


def test_real_processes() -> None:
    with process(SPIN) as pid:
        becomes(pid, True)
        os.kill(pid, signal.SIGSTOP)
        becomes(pid, False)
        os.kill(pid, signal.SIGCONT)
        becomes(pid, True)
    with process(SLEEP) as pid:
        becomes(pid, False)
    assert look(pid, 0.0) is None, "it was reaped"


def test_a_name_may_hold_anything() -> None:
    with process("import ctypes; ctypes.CDLL(None).prctl(15, b') R 1 (', 0, 0, 0); " + SLEEP) as pid:
        becomes(pid, False)
