# SPDX-License-Identifier: Apache-2.0
"""The points of each sweep: what is launched, what is asked of the load generator, and the table of its answers. In
place of the program one runs that notes what it was started with; with --long tests/system/test_sweeps.py measures."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Notes its words, and answers as the program does: `launch` says that it is ready and stays, `bench` prints its line.
PROGRAM = """#!/bin/bash
case $2 in
launch) echo "${@:3}" >>NOTES; echo 'ready on'; exec sleep 600 ;;
bench) echo "${@:5}" | sed 's/--raw [^ ]*//' >>NOTES; echo '{"failures": 0}' ;;
*) exec PYTHON "$@" ;;
esac
"""


def notes_of(folder: Path, kind: str, points: str, **variables: str) -> list[list[str]]:
    """Run a sweep; return the words of each launch and of each load, without the folder's."""
    program, notes = folder / "program", folder / "notes"
    program.write_text(PROGRAM.replace("NOTES", str(notes)).replace("PYTHON", sys.executable))
    program.chmod(0o755)
    command = [str(ROOT / "scripts" / f"sweep_{kind}.sh"), "--out", str(folder / "out"), "--requests", "7"]
    environment = {**os.environ, "PYTHON": str(program), **variables}
    done = subprocess.run(
        [*command, "--points", points, "--", "--model", "m"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((folder / "out" / f"{kind}.csv").open()))
    assert [row[kind] for row in rows] == points.split() and all(row["failures"] == "0" for row in rows)
    return [line.split() for line in notes.read_text().splitlines()]


LAUNCH, LOAD = ["--port", "8123"], ["--requests", "7"]


def test_rates_are_asked_of_one_launch(tmp_path: Path) -> None:
    assert notes_of(tmp_path, "rate", "0.5 2") == [
        [*LAUNCH, "--model", "m"],
        [*LOAD, "--request-rate", "0.5"],
        [*LOAD, "--request-rate", "2"],
    ]


def test_ratios_are_launches_of_their_own(tmp_path: Path) -> None:
    load, model = [*LOAD, "--concurrency", "3"], ["--model", "m"]
    assert notes_of(tmp_path, "ratio", "0:2 1:2", CONCURRENCY="3", DEVICES="4,5,6") == [
        [*LAUNCH, "--role", "mixed", "--mixed", "4,5", *model],
        load,
        [*LAUNCH, "--prefill", "4", "--decode", "5,6", *model],
        load,
    ]


def test_ratios_without_devices_share_those_that_there_are(tmp_path: Path) -> None:
    many = (os.cpu_count() or 1) + 1
    (launch, _) = notes_of(tmp_path, "ratio", f"1:{many}")
    assert launch == [*LAUNCH, "--prefill", "cpu*1", "--decode", f"cpu*{many}", "--share-devices", "--model", "m"]


@pytest.mark.parametrize("kind", ["concurrency", "goodput"])
def test_the_others_do_likewise(tmp_path: Path, kind: str) -> None:
    found = notes_of(tmp_path, kind, "3" if kind == "concurrency" else "0:1@30", DEVICES="4", RATE="2")
    asked = {
        "concurrency": ["--concurrency", "3"],
        "goodput": ["--find-rate", "--request-rate", "2", "--itl-limit", "30", "--share", "0.9"],
    }
    assert found[1] == [*LOAD, *asked[kind]]
