# SPDX-License-Identifier: Apache-2.0
"""The command line as a user meets it: real processes, no mocks."""

import json
import socket
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from usage_rows import BALANCED, SHARE

from pontil.launcher.options import LaunchOptions, flag_name
from pontil.launcher.version import VERSION
from pontil.runtime.accounting.usage_file import UsageFile

ROOT = Path(__file__).resolve().parents[2]


def app(*words: str, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / "app.py"), *words], capture_output=True, text=True, cwd=folder, timeout=60
    )


def test_help_shows_every_flag_and_hides_what_is_not_for_people() -> None:
    shown = app("launch", "--help").stdout
    for each in fields(LaunchOptions):
        assert f"--{flag_name(each)}" in shown
    commands = app("--help").stdout
    assert "launch" in commands and "child" not in commands


def test_the_version_is_printed() -> None:
    assert app("version").stdout == f"{VERSION}\n"


def test_the_command_line_loads_nothing_heavy() -> None:
    check = (
        "import app, json, sys; from pontil.launcher import cli; "
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True).stdout)
    assert "click" in loaded and not {"torch", "zmq", "sanic", "numpy", "msgpack", "ctypes"} & set(loaded)


def test_a_dry_run_prints_the_plan_and_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "pontil.toml").write_text('role = "mixed"\nport = 8123\nmodel = "some/model"\n')
    done = app("launch", "--dry-run", "--config", "pontil.toml", "--served-model-name", "x", folder=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["proxy", "mixed:0", "model", "control", "clients"]
    assert "http://127.0.0.1:8123" in done.stdout and "some/model" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["launch", "--port", "x"], 2, "--port must be"),
        (["launch", "--prefill", "cpu:0,cpu:0"], 2, "--share-devices"),
        (["launch", "--role", "decode"], 2, "--join"),
        (["launch", "--config", "/none.toml"], 2, "cannot be read"),
        (["launch", "--prefil", "cpu"], 2, "--prefill"),
        (["launch", "--port", "0", "--role", "mixed", "--model", "no-such-model"], 1, "no-such-model"),
        (["lunch"], 2, "launch"),
        (["launch", "--keys", "/none.keys"], 2, "key file /none.keys cannot be read"),
        (["usage", "/none.db"], 1, "there is no usage log"),
        (["audit", "/none.db"], 1, "there is no usage log"),
        (
            ["launch", "--role", "decode", "--join", "ipc:///x", "--usage-log", "x"],
            2,
            "--usage-log is kept by the proxy",
        ),
    ],
)
def test_mistakes_end_in_a_sentence_and_an_exit_code(words: list[str], code: int, said: str) -> None:
    done = app(*words)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert said in done.stderr.splitlines()[-1] and done.stderr.splitlines()[-1].startswith("Error: ")


def test_a_port_in_use_is_noticed_before_anything_starts() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        done = app("launch", "--role", "mixed", "--port", str(port))
    assert done.returncode == 1
    assert (
        done.stderr == f"Error: Port {port} on 127.0.0.1 is in use: stop what listens there or choose another --port.\n"
    )


def test_usage_is_a_table_and_audit_an_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    file = UsageFile(path)
    file.write(BALANCED)
    file.close()
    lines = app("usage", str(path)).stdout.splitlines()
    assert lines[0].startswith("api key  model  day") and lines[0].endswith("completion tokens")
    assert lines[1].split() == ["-", "tiny", "2024-10-04", "1", "0", "0", "5", "2", "3"]
    (summed,) = json.loads(app("usage", str(path), "--json").stdout)
    assert (summed["api_key"], summed["completion_tokens"]) == ("-", 3)
    proved = app("audit", str(path))
    assert proved.returncode == 0 and "DIFFER" not in proved.stdout
    file = UsageFile(path)
    file.write([replace(SHARE, generated=5)])
    file.close()
    disproved = app("audit", str(path))
    assert disproved.returncode == 1 and "request mine-1" in disproved.stdout
