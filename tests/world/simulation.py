# SPDX-License-Identifier: Apache-2.0
"""Runs of scripts/simulate.py. Each is a process of its own, since it replaces clock and sockets."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Seconds that a run may take, for its imports and for each of its seeds.
IMPORTS_WITHIN, SEED_WITHIN = 300.0, 15.0


def simulated(*given: str, hash_seed: int = 0, seeds: int = 1) -> tuple[int, list[str]]:
    """Run so many seeds; return the exit code and what was printed."""
    done = subprocess.run(
        [sys.executable, "scripts/simulate.py", *given], cwd=ROOT, capture_output=True, text=True,
        timeout=IMPORTS_WITHIN + seeds * SEED_WITHIN, env=os.environ | {"PYTHONHASHSEED": str(hash_seed)}, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()
