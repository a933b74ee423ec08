# SPDX-License-Identifier: Apache-2.0
"""Benchmark sweeps: launch, measure, stop, one table; an interrupted sweep resumes where it stopped.

Only with --long: each start of theirs is a whole one, and by default tests/scripts measures scripted servers."""

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from served import ROOT, START_TIMEOUT, free_port, wait_for

pytestmark = pytest.mark.long
LENGTHS = "conversation,turn,prompt_tokens,output_tokens,shared_prefix_tokens\n0,0,5,3,0\n0,1,9,2,7\n"


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """Options for a load whose token ids the tiny model has."""
    lengths = tmp_path / "lengths.csv"
    lengths.write_text(LENGTHS)
    return [
        "--out",
        str(tmp_path / "sweep"),
        "--requests",
        "2",
        "--lengths",
        str(lengths),
        "--port",
        str(free_port()),
        "--vocabulary",
        "250",
    ]


def sweep(options: list[str], points: str, model: str, kind: str = "concurrency") -> "subprocess.Popen[str]":
    flags = ["--points", points, "--", "--model", model, "--kv-cache-memory", "64MiB"]
    flags += ["--role", "mixed"] if kind in ("concurrency", "rate") else []
    command = [str(ROOT / "scripts" / f"sweep_{kind}.sh"), *options, *flags]
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_a_sweep_that_was_interrupted_goes_on(options: list[str], tmp_path: Path, model: str) -> None:
    out = tmp_path / "sweep"
    # Of more points than could be measured before it is interrupted.
    first = sweep(options, "1 2 3 4 5 6 7 8", model)
    wait_for(lambda: (out / "points" / "1.json").exists() or first.poll() is not None, START_TIMEOUT, "the first point")
    assert first.poll() is None, first.communicate()[0]
    os.killpg(first.pid, signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode != 0 and not (out / "concurrency.csv").exists()
    assert not [one for one in psutil.process_iter() if one.pid != first.pid and is_of(one, first.pid)]
    kept = (out / "points" / "1.json").read_text()
    second = sweep(options, "1 2", model)
    said, _ = second.communicate(timeout=START_TIMEOUT)
    assert second.returncode == 0, said
    assert "measuring concurrency 1" not in said and "measuring concurrency 2" in said
    assert (out / "points" / "1.json").read_text() == kept
    rows = list(csv.DictReader((out / "concurrency.csv").open()))
    assert [row["concurrency"] for row in rows] == ["1", "2"]
    assert all((row["prompt_tokens"], row["output_tokens"], row["failures"]) == ("14", "5", "0") for row in rows)
    table = (out / "concurrency.md").read_text().splitlines()
    assert len(table) == 4 and table[0].startswith("| concurrency |")
    other = sweep([*options, "--requests", "3"], "1", model)
    said, _ = other.communicate(timeout=60)
    assert other.returncode == 1 and "holds a sweep with other settings" in said


def test_goodput_of_a_pair_and_of_mixed_workers(options: list[str], tmp_path: Path, model: str) -> None:
    run = sweep(options, "1:1@60000 0:2@60000", model, "goodput")
    said, _ = run.communicate(timeout=START_TIMEOUT)
    assert run.returncode == 0, said
    rows = list(csv.DictReader((tmp_path / "sweep" / "goodput.csv").open()))
    assert [row["goodput"] for row in rows] == ["1:1@60000", "0:2@60000"]
    assert all(float(row["highest_request_rate"]) > 1 and row["itl_limit_ms"] == "60000.0" for row in rows)


@pytest.mark.parametrize(("kind", "points"), [("rate", "20 40"), ("ratio", "0:1 1:1")])
def test_rates_and_ratios(options: list[str], tmp_path: Path, model: str, kind: str, points: str) -> None:
    run = sweep(options, points, model, kind)
    said, _ = run.communicate(timeout=START_TIMEOUT)
    assert run.returncode == 0, said
    rows = list(csv.DictReader((tmp_path / "sweep" / f"{kind}.csv").open()))
    assert [row[kind] for row in rows] == points.split()
    assert all((row["prompt_tokens"], row["output_tokens"], row["failures"]) == ("14", "5", "0") for row in rows)
    assert not [one for one in psutil.process_iter() if one.pid != run.pid and is_of(one, run.pid)]


def is_of(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except OSError:
        return False
