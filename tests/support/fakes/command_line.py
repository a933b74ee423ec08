# SPDX-License-Identifier: Apache-2.0
"""The command line in a process of its own, run to its end."""

import os
import subprocess
from pathlib import Path

from forked_program import run_program

ROOT = Path(__file__).resolve().parents[3]
APP = ROOT / "app.py"
# A core that this process may use.
CORE = min(os.sched_getaffinity(0))


def app(*words: str, folder: Path = ROOT, typed: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `app.py` with these words in this folder, with these variables added to the environment."""
    return run_program([str(APP), *words], variables, folder, typed)


def obeyed(port: int, *words: str) -> str:
    """Run a command for the launch on this port, which must do it; return its output."""
    done = app(*words, "--port", str(port))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
