# SPDX-License-Identifier: Apache-2.0
"""The command line in a process of its own, run to its end."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 120.0
# A core that this process may use.
CORE = min(os.sched_getaffinity(0))


def app(*words: str, folder: Path = ROOT, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `app.py` with these words in this folder, with these variables added to the environment."""
    return subprocess.run(
        [sys.executable, str(ROOT / "app.py"), *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=TIMEOUT,
        env={**os.environ, **variables},
    )
