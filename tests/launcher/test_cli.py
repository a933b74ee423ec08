# SPDX-License-Identifier: Apache-2.0
"""The command line as a user sees it: no mocks, and real processes for all that is more than a sentence."""

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import CORE, ROOT, app
from tiny_llama import write_tiny_llama
from usage_rows import BALANCED, SHARE

from pontil.launcher.cli import cli
from pontil.launcher.foundation.version import VERSION
from pontil.launcher.options.options import OPTIONS, flag_name
from pontil.runtime.accounting.usage_file import UsageFile


def test_help_shows_every_flag_and_hides_what_is_not_for_people() -> None:
    shown = app("launch", "--help").stdout
    for each in OPTIONS:
        assert f"--{flag_name(each)}" in shown
    commands = app("--help").stdout
    assert "launch" in commands and "child" not in commands


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_version_is_printed(word: str) -> None:
    done = app(word)
    assert (done.returncode, done.stdout) == (0, f"{VERSION}\n")


# Packages that the launcher's process loads, beside the standard library; and modules of the latter that it must not
# load.
ALLOWED = {"app", "pontil", "click", "psutil"}
HEAVY = {"http", "urllib", "asyncio", "email", "ctypes", "sqlite3", "multiprocessing"}
LOADED = """
import app, json, sys
from pontil.launcher.cli import cli
try:
    cli.main(sys.argv[1:], standalone_mode=False)
except Exception as error:
    print(type(error).__name__)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["launch", "--help"],
        ["launch", "--dry-run"],
        ["graph", "--model", "speech-demo"],
        ["config"],
        ["launch", "--port", "0", "--role", "mixed", "--model", "no-such-model"],
    ],
)
def test_the_command_line_loads_nothing_heavy(words: list[str]) -> None:
    """Check at the end of the process, a launch included: it runs as long as the server and starts children hours
    later."""
    blank, done = (
        subprocess.run([sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
        for script in ("import json, sys; print(json.dumps(list(sys.modules)))", LOADED)
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1])) - set(json.loads(blank.stdout))
    if "--port" in words:
        # A launch asks the kernel to end its children with it, and only C can.
        loaded.remove("ctypes")
    assert loaded - sys.stdlib_module_names <= ALLOWED and not loaded & HEAVY, sorted(loaded)
    assert "click" in loaded


def test_a_command_loads_no_other() -> None:
    """Children are commands too, and each start would pay for it."""
    script = "import app, sys; from pontil.launcher.cli import cli; cli.commands['usage']; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    loaded = {name for name in done.stdout.split() if name.startswith("pontil.launcher.")}
    assert "pontil.launcher.commands.usage" in loaded
    assert not {"pontil.launcher.commands.launch", "pontil.launcher.tools.bench.command"} & loaded, loaded


def test_a_dry_run_prints_the_plan_and_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "pontil.toml").write_text('role = "mixed"\nport = 8123\nmodel = "some/model"\n')
    done = app("launch", "--dry-run", "--config", "pontil.toml", "--served-model-name", "x", folder=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["proxy", "mixed:0", "model", "control", "clients"]
    assert "http://127.0.0.1:8123" in done.stdout and "some/model" in done.stdout


def test_a_plan_ends_as_the_launch_would_for_a_draft_model_that_does_not_fit(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny")
    words = ("launch", "--dry-run", "--role", "mixed", "--model", str(tmp_path / "tiny"), "--speculative-model", "mtp")
    refused = app(*words)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "needs a checkpoint with an MTP layer, and tiny has none" in refused.stderr.splitlines()[-1]


def test_the_number_of_a_stages_workers_is_checked() -> None:
    for words in (("scale", "--node", "talker"), ("scale", "--node", "=1"), ("scale", "--node", "talker=many")):
        refused = CliRunner().invoke(cli, words)
        assert refused.exit_code == 2 and "--node takes a stage and a number" in refused.output


def test_a_plan_tells_the_memory_of_each_rank_or_why_it_cannot_be(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny")
    words = ("launch", "--dry-run", "--share-devices", "--role", "mixed", "--model", str(tmp_path / "tiny"))
    planned = app(*words, "--mixed", f"cpu:{CORE}+cpu:{CORE}")
    assert planned.returncode == 0, planned.stderr
    assert re.search(r"^memory +each of 2 ranks: \d+ MiB of weights, .* of KV cache and ", planned.stdout, re.MULTILINE)
    assert re.search(r"^memory +all 2 at once: \d+ MiB of the .* left$", planned.stdout, re.MULTILINE)
    refused = app(*words, "--mixed", f"cpu:{CORE}+cpu:{CORE}+cpu:{CORE}")
    assert refused.returncode == 1 and "cannot be divided over 3 devices" in refused.stderr.splitlines()[-1]
    assert "join 2 or 4 devices" in refused.stderr and "Traceback" not in refused.stderr


def test_a_worker_over_two_gpus_is_shown_in_the_plan(tmp_path: Path) -> None:
    """A script in place of the driver's tool reports three GPUs."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 0, 80000; echo 1, 80000; echo 2, 80000\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    planned = app(
        "launch", "--prefill", "0+1", "--decode", "2", "--dry-run", "--model", "gemma3-270m", PATH=str(tmp_path)
    )
    assert planned.returncode == 0 and "prefill:0    2 ranks" in planned.stdout
    assert re.search(r"^  prefill:0\+1  cuda:1   cores", planned.stdout, re.MULTILINE)
    refused = app("launch", "--prefill", "cpu:0+1", PATH=str(tmp_path))
    assert refused.returncode == 2 and "may not join cores and GPUs" in refused.stderr.splitlines()[-1]
    assert "There is no cuda:3" in app("launch", "--prefill", "3", PATH=str(tmp_path)).stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["launch", "--port", "x"], 2, "--port must be"),
        (["launch", "--prefill", f"cpu:{CORE},cpu:{CORE}"], 2, "--share-devices"),
        (["launch", "--role", "decode", "--control", "ipc:///x"], 2, "--join"),
        (["launch", "--config", "/none.toml"], 2, "cannot be read"),
        (["launch", "--prefil", "cpu"], 2, "--prefill"),
        (["lunch"], 2, "launch"),
        (["launch", "--keys", "/none.keys"], 2, "key file /none.keys cannot be read"),
        (["usage", "/none.db"], 1, "there is no usage log"),
        (["audit", "/none.db"], 1, "there is no usage log"),
        (
            ["launch", "--role", "decode", "--join", "ipc:///x", "--usage-log", "x"],
            2,
            "--usage-log is kept by the proxy",
        ),
        (
            ["launch", "--role", "decode", "--join", "ipc:///x", "--response-store", "x"],
            2,
            "--response-store is the proxy's",
        ),
    ],
)
def test_mistakes_end_in_a_sentence_and_an_exit_code(words: list[str], code: int, said: str) -> None:
    """In this process, which is enough for what `cli` itself says."""
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code and isinstance(done.exception, SystemExit)
    assert said in done.output.splitlines()[-1] and done.output.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["launch", "--port", "x"], 2, "--port must be"),
        (["launch", "--port", "0", "--role", "mixed", "--model", "no-such-model"], 1, "no-such-model"),
    ],
)
def test_a_process_ends_so_too(words: list[str], code: int, said: str) -> None:
    done = app(*words)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert said in done.stderr.splitlines()[-1] and done.stderr.splitlines()[-1].startswith("Error: ")


def test_output_that_nobody_reads_is_no_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with (tmp_path / "errors").open("w") as errors:
        done = subprocess.run(
            [sys.executable, str(ROOT / "app.py"), "config"], stdout=writing, stderr=errors, timeout=60
        )
    os.close(writing)
    assert (done.returncode, (tmp_path / "errors").read_text()) == (1, "")


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
