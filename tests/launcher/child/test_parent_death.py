# SPDX-License-Identifier: Apache-2.0
"""A child dies with its parent from its first instruction on, whatever state it is in."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DEADLINE = 60.0
# Starts a child that itself asks for nothing, stopped before it has run: the state of one that an operator's kill found
# right after the fork.
PARENT = """
import os, signal, subprocess
from pontil.launcher.child.parent_death import parent_death_signal
child = subprocess.Popen(["sleep", "600"], preexec_fn=parent_death_signal(signal.SIGKILL))
os.kill(child.pid, signal.SIGSTOP)
print(child.pid, flush=True)
signal.pause()
"""


def is_gone(pid: int) -> bool:
    """Return whether the process has ended. It stays a zombie where nothing reaps orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_stopped_child_dies_with_its_parent() -> None:  # G4
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.kill()
    until = time.monotonic() + DEADLINE
    try:
        while not is_gone(child):
            assert time.monotonic() < until, "the child outlived its parent"
            time.sleep(0.01)  # the kernel tells only a parent of a death, and this is none
    finally:
        if not is_gone(child):
            os.kill(child, signal.SIGKILL)
