# SPDX-License-Identifier: Apache-2.0
"""Those parts of the connection to Ray that need no cluster."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pontil.launcher.cli import cli
from pontil.launcher.cluster.ray_cluster import checkout_folder, import_ray, plain
from pontil.launcher.foundation.errors import OptionError

ROOT = Path(__file__).resolve().parents[3]


def test_a_launch_without_ray_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match="extra `ray`"):
        import_ray()
    done = CliRunner().invoke(cli, ["launch", "--on", "ray"])
    assert done.exit_code == 2 and done.output.count("\n") == 1 and "is not installed here" in done.output


def test_a_plan_needs_no_ray_and_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = CliRunner().invoke(cli, ["launch", "--on", "ray", "--dry-run", "--decode", "cpu:0-3,0+1"])
    assert done.exit_code == 0
    assert [line.split(maxsplit=1) for line in done.output.splitlines()] == [
        ["proxy", "here"], ["prefill:0", "CPU 1"], ["decode:0", "CPU 4"], ["decode:1", "CPU 2, GPU 2"],
    ]  # fmt: skip


def test_keys_are_checked_before_ray_is_asked(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["launch", "--on", "ray", "--keys", str(tmp_path / "none")])
    assert done.exit_code == 2 and "cannot be read" in done.output


def test_an_error_of_rays_is_one_line() -> None:
    class NodeDiedError(Exception):
        pass

    assert (
        plain(NodeDiedError("The actor died.\n\n\tclass_name: X\n  the node was lost \n"))
        == "NodeDiedError, the node was lost"
    )
    assert plain(NodeDiedError()) == "NodeDiedError"


def test_nodes_find_the_checkout_by_its_path() -> None:
    assert checkout_folder() == str(ROOT)


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed")
def test_a_cluster_that_is_not_there_is_one_sentence() -> None:
    command = [sys.executable, str(ROOT / "app.py"), "launch", "--on", "ray"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "No Ray cluster answers at this host" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
