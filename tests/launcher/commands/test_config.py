# SPDX-License-Identifier: Apache-2.0
"""The command `pontil config`, run as a real process."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import app
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.commands.config import spelled
from pontil.launcher.options.options import OPTIONS, flag_name, read_options
from pontil.runtime.config.readers import seconds


def shown(*words: str, folder: Path, **variables: str) -> dict[str, dict[str, Any]]:
    done = app("config", "--json", *words, folder=folder, **variables)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def test_every_option_is_shown_with_its_source(tmp_path: Path) -> None:  # G1
    (tmp_path / "pontil.toml").write_text('port = 9000\nmax-num-seqs = 3\ndecode = ["cpu:0-3", "cpu"]\n')
    given = ("--config", "pontil.toml", "--port", "9002", "--no-prefix-caching")
    rows = shown(*given, folder=tmp_path, PONTIL_PORT="9001", PONTIL_MAX_NUM_SEQS="5")
    assert list(rows) == [flag_name(each) for each in OPTIONS]
    assert rows["port"] == {"name": "port", "value": 9002, "source": "flag", "place": "--port"}
    assert (rows["max-num-seqs"]["value"], rows["max-num-seqs"]["place"]) == (5, "PONTIL_MAX_NUM_SEQS")
    assert (rows["decode"]["value"], rows["decode"]["source"]) == ("cpu:0-3,cpu", "file")
    assert rows["prefix-caching"]["value"] is False
    assert rows["block-size"]["source"] == "default" and rows["max-model-len"]["value"] is None


def test_the_flag_of_a_list_may_be_repeated(tmp_path: Path) -> None:
    given = ("--cors-origin", "https://a.example,http://b", "--cors-origin", "app://c")
    rows = shown(*given, folder=tmp_path)
    assert (
        rows["cors-origin"]["value"] == "https://a.example,http://b,app://c"
        and rows["allowed-hosts"]["source"] == "default"
    )
    assert app("config", "--cors-origin", "", folder=tmp_path).returncode == 2


def test_people_get_a_table(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('model = "m"\n')
    done = app("config", folder=tmp_path, PONTIL_CONFIG="c.toml", PONTIL_PREFILL="none")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["model", "m", "file", "c.toml"] in lines
    assert ["prefill", "none", "environment", "PONTIL_PREFILL"] in lines
    assert ["drain-timeout", "30", "default"] in lines and ["max-model-len", "-", "default"] in lines
    assert ["Engine:"] in lines and done.returncode == 0


@pytest.mark.parametrize("command", ["config", "launch"])
def test_mistakes_in_the_environment_are_refused_wherever_options_are_read(command: str, tmp_path: Path) -> None:  # G1
    done = app(command, folder=tmp_path, PONTIL_MODLE="x")
    assert (done.returncode, done.stderr) == (
        2,
        "Error: The environment has an unknown PONTIL_MODLE: did you mean 'PONTIL_MODEL'?\n",
    )


def test_launch_obeys_what_config_shows(tmp_path: Path) -> None:
    done = app("launch", "--dry-run", folder=tmp_path, PONTIL_ROLE="mixed", PONTIL_PORT="8123")
    assert "mixed:0" in done.stdout and "http://127.0.0.1:8123" in done.stdout and done.returncode == 0


@given(st.lists(st.sampled_from(["0", "2", "cpu", "cpu:3", "cpu:0-3"])))
def test_what_is_shown_can_be_given_again(items: list[str]) -> None:
    devices = read_options({"decode": ",".join(items) or "none"}).decode
    assert read_options({"decode": spelled(devices)}).decode == devices
    for value in (0.0, 0.25, 12.5, 1e6):
        assert seconds(spelled(value)) == value
