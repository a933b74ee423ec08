# SPDX-License-Identifier: Apache-2.0
"""Roles that follow the load, with the real proxy and workers in virtual time (scripts/simulate_balance.py)."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from balance_trials import Phase, outcome
from virtual_fork import in_virtual_time

ROOT = Path(__file__).resolve().parents[4]


def test_roles_follow_a_load_that_shifts_and_nobody_notices() -> None:
    """Prompts want a third prefill worker, answers a third that decodes; requests in flight stay where they are."""

    def work() -> dict[str, Any]:
        phases = [Phase(9.0, 1.7, 384, 2), Phase(18.0, 2.4, 8, 12)]
        return asdict(outcome(2, phases, 1, balance=True, disagg="always"))

    told = in_virtual_time(work)
    assert told["failures"] == 0
    roles = [role for _, _, role in told["changes"]]
    assert roles[0] == "prefill" and roles[-1] == "decode" and len(roles) <= 4, told["changes"]


@pytest.mark.long
@pytest.mark.parametrize("options", [("steady", "--seeds", "1-12"), ("shifting", "--seeds", "1-6")])
def test_over_seeds_they_beat_fixed_ones_on_shifting_loads_and_lose_little_on_steady_ones(
    options: tuple[str, ...],
) -> None:
    """Some of the thousand loads, which take more than an hour: the script ends with 1 where they do not."""
    command = [sys.executable, "scripts/simulate_balance.py", "--jobs", "2", "--kinds", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    assert not done.returncode, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["load"] == options[0] and told["seeds"] >= 4
