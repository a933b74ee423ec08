# SPDX-License-Identifier: Apache-2.0
"""The answer of `ready`, by what a supervisor says of its processes."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pontil.launcher.cli import cli
from pontil.launcher.commands.ready import said
from pontil.launcher.control.control_client import RunningLaunch
from pontil.launcher.foundation.errors import LaunchError


def launch(*processes: tuple[str, str, str]) -> RunningLaunch:
    rows = [{"name": name, "role": role, "state": state} for name, role, state in processes]
    return RunningLaunch(Path("/run"), {"processes": rows})


def test_a_launch_is_ready_when_all_of_its_processes_are() -> None:
    assert said(launch(("decode:3", "decode", "ready"))) == "ready: decode:3"
    assert said(launch(("proxy", "proxy", "ready"), ("mixed:0", "mixed", "ready"))) == "ready: proxy, mixed:0"


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ([("decode:3", "decode", "starting")], "decode:3 is starting"),
        ([("proxy", "proxy", "ready"), ("decode:0", "decode", "drained")], "decode:0 is drained"),
        ([("mixed:0", "mixed", "given_up")], "mixed:0 is given_up"),
        ([("prepare", "prepare", "ready")], "the model is being looked for"),
        ([], "the model is being looked for"),
    ],
)
def test_a_launch_that_is_not_ready_says_what_is_missing(processes: list[tuple[str, str, str]], words: str) -> None:
    with pytest.raises(LaunchError) as refusal:
        said(launch(*processes))
    assert refusal.value.message == f"Not ready yet: {words}." and refusal.value.exit_code == 1


def test_without_a_launch_nothing_is_ready(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["ready", "--run-directory", str(tmp_path / "7")])
    assert done.exit_code == 1 and "No launch of yours is running here" in done.output
