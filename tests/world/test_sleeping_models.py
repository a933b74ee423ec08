# SPDX-License-Identifier: Apache-2.0
"""Models that sleep and wake in the world, and planted faults, which their invariants find."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from sleeping_faults import PLANTED

ROOT = Path(__file__).resolve().parents[2]


def simulated(*given: str) -> tuple[int, list[dict[str, Any]]]:
    command = [sys.executable, "scripts/simulate_models.py", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_models_sleep_and_wake_beside_one_that_crashes() -> None:
    """It takes some seconds: a world is imported, and plays a minute."""
    code, (seed,) = simulated("--seeds", "1")
    assert code == 0 and not seed["violations"], seed
    assert seed["wakes"] > 3 and seed["kills"] == 3 and seed["refused"] > 0


@pytest.mark.long
def test_more_seeds_are_clean_and_the_same_each_time() -> None:
    runs = [simulated("--seeds", seeds) for seeds in ("1-8", "1-2")]
    assert [code for code, _ in runs] == [0, 0], runs
    assert [one["trace"] for one in runs[0][1][:2]] == [one["trace"] for one in runs[1][1]]


@pytest.mark.long
def test_every_planted_fault_is_found_by_the_invariant_that_is_meant() -> None:
    code, found = simulated("--seeds", "1", "--plant", "all")
    violations = defaultdict[str, str](str)
    for one in found:
        violations[one["planted"]] += " ".join(one["violations"])
    assert code == 1 and {name: check in violations[name] for name, (_, check) in PLANTED.items()} == dict.fromkeys(
        PLANTED, True
    )
