# SPDX-License-Identifier: Apache-2.0
"""Environments have the system's Python where it can make them, and the one that PYTHON names."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def chosen(system: Path | str, environment: dict[str, str]) -> str:
    """Return the Python that scripts choose on a machine with this one."""
    command = ["bash", "-euc", '. "$1/venv.sh"; choose_python "$2"', "bash", str(SCRIPTS), str(system)]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_systems_python_is_chosen_and_another_one_by_its_name() -> None:
    assert chosen(sys.executable, {}) == sys.executable
    assert chosen(sys.executable, {"PYTHON": "python3.12"}) == "python3.12"


@pytest.mark.parametrize("source", [None, "exit 1"])
def test_one_that_is_missing_too_old_or_without_environments_leaves_that_of_the_path(
    tmp_path: Path, source: str | None
) -> None:
    system = tmp_path / "python3"
    if source is not None:
        system.write_text(f"#!/bin/sh\n{source}\n")
        system.chmod(0o755)
    assert chosen(system, {}) == "python3"
