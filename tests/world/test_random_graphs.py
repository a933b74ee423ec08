# SPDX-License-Identifier: Apache-2.0
"""Random graphs with a proxy and workers, of which some die, in virtual time."""

import subprocess
import sys

import pytest
from effort import examples
from simulation import IMPORTS_WITHIN, ROOT, SEED_WITHIN

# Seeds of one run, and how many of them run at a time.
EACH, JOBS = 5, 2


@pytest.mark.parametrize("first", range(1, examples(EACH, 500), EACH))
def test_runs_of_random_graphs_sound_and_count_as_their_plain_runs(first: int) -> None:  # E1, E2, E3, E5, E15, E16
    asked = ("--world", "--seeds", f"{first}-{first + EACH - 1}", "--jobs", str(JOBS))
    done = subprocess.run(
        [sys.executable, "scripts/random_graphs.py", *asked], cwd=ROOT, capture_output=True, text=True,
        timeout=IMPORTS_WITHIN + EACH * SEED_WITHIN, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{EACH} seeds, "), done.stdout
