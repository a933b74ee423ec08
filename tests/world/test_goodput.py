# SPDX-License-Identifier: Apache-2.0
"""Goodput on the simulated machine: times of steps from a profile, the search for a rate, and one comparison."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from step_profile import StepProfile, highest_rate

ROOT = Path(__file__).resolve().parents[2]


def test_a_profile_tells_the_time_of_every_step() -> None:
    profile = StepProfile.read("1=14,8=15,32=53,256=285")
    assert [round(profile.seconds(0, rows) * 1e3, 2) for rows in (1, 8, 20, 32)] == [14, 15, 34, 53]
    assert profile.seconds(256, 0) == pytest.approx(0.285) and profile.seconds(248, 8) == pytest.approx(0.285)
    assert profile.seconds(512, 0) == pytest.approx(0.285 + 256 * (0.285 - 0.053) / 224)
    for wrong in ("1=14", "8=15,1=14", "1=14,1=15", "1:14,8:15", "a=1,b=2"):
        with pytest.raises(ValueError):
            StepProfile.read(wrong)


@pytest.mark.parametrize("most", [0.0, 0.02, 0.7, 1.0, 13.0])
def test_the_search_finds_the_highest_rate_that_holds(most: float) -> None:
    tried = list[float]()

    def trial(rate: float) -> float:
        tried.append(rate)
        return rate

    found, outcome = highest_rate(trial, lambda rate: rate <= most, 1.0)
    assert found <= most and (found == outcome or not found) and len(tried) < 20
    assert most == 0.0 or found >= 0.93 * most


@pytest.mark.long
def test_a_comparison_is_the_same_each_time() -> None:
    command = [sys.executable, "scripts/simulate_goodput.py", "--steps", "1=14.4,8=14.8,32=53.3,256=284.2"]
    told = []
    for _ in range(2):
        asked = [*command, "--requests", "40", "--limits", "30", "--seed", "3"]
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
        assert not done.returncode, done.stdout + done.stderr
        told.append(done.stdout)
    assert told[0] == told[1]
    pair, mixed = [json.loads(line) for line in told[0].splitlines()]
    assert pair["requests_per_second"] > 0 and pair["share"] >= 0.9 and pair["between_ms"] <= 30
    assert (pair["ratio"], mixed["ratio"], mixed["limit_ms"]) == ("1:2", "0:3", 30.0)


@pytest.mark.long
def test_a_batch_of_5000_lines_costs_those_who_wait_nothing_and_uses_what_is_idle() -> None:
    """The time to the first token at the 99th percentile, and the seats, where each row of a step costs, as on CPUs."""
    steps = "1=14.4,8=14.8,32=53.3,256=284.2"
    command = [sys.executable, "scripts/simulate_goodput.py", "--steps", steps, "--ratios", "0:2", "--seed", "3"]
    command += ["--rate", "1.5", "--requests", "240", "--batch", "5000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert not done.returncode, done.stdout + done.stderr
    alone, beside = [json.loads(line) for line in done.stdout.splitlines()]
    assert (alone["answered_once"], beside["answered_once"]) == (0, 5000)
    assert beside["first_p99_ms"] <= 1.05 * alone["first_p99_ms"] and beside["idle_seats_used"] >= 0.95
