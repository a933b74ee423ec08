# SPDX-License-Identifier: Apache-2.0
"""One stream and a file for each process, with real processes: a request is found by its id in all of them."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import ROOT, START_TIMEOUT, Served, launched, wait_for

SECRET, PROMPT = "sk-very-secret-9876", "the glazier whispered quietly"
NAMES = ("launcher", "proxy", "prefill-0", "decode-0")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: str) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    flags = ("--log-dir", str(folder / "logs"), "--log-format", "json", "--log-level", "debug")
    with launched(folder, "--model", model, "--kv-cache-memory", "8MiB", *flags) as one:
        yield one


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def logs(served: Served) -> dict[str, list[dict[str, Any]]]:
    return {name: entries(served.output.parent / "logs" / f"{name}.log") for name in NAMES}


def test_a_request_is_found_by_its_id_in_every_process(served: Served) -> None:  # F6
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}
    headers = {"x-request-id": "mine", "authorization": f"Bearer {SECRET}"}
    assert served.request("POST", "/v1/completions", body, headers).json()["usage"]["completion_tokens"] == 4

    def found() -> set[str]:
        return {
            name for name, lines in logs(served).items() for line in lines
            if str(line.get("request", "")).startswith("mine-")
        }  # fmt: skip

    wait_for(lambda: found() == {"proxy", "prefill-0", "decode-0"}, 60, "lines of every process")
    (summary,) = [line for line in logs(served)["proxy"] if line.get("logger") == "pontil.requests"]
    assert summary["request"].startswith("mine-") and "finish=length" in summary["message"]


def test_no_secret_and_no_prompt_is_in_any_log(served: Served) -> None:
    served.request("POST", "/v1/completions", {"model": "tiny", "prompt": PROMPT, "max_tokens": "x"},
                   {"authorization": f"Bearer {SECRET}"}).json()  # fmt: skip
    texts = [path.read_text() for path in (served.output.parent / "logs").glob("*.log")] + [served.output.read_text()]
    assert len(texts) == 1 + len(NAMES)
    assert not [text for text in texts if SECRET in text or PROMPT in text]


def test_every_line_says_when_how_grave_and_who(served: Served) -> None:
    streamed = entries(served.output)
    assert {line["process"] for line in streamed} >= {"launcher", "proxy", "prefill:0", "decode:0"}
    for line in [*streamed, *(line for lines in logs(served).values() for line in lines)]:
        assert line["time"].endswith("Z") and line["level"] in ("debug", "info", "warning", "error")
        assert line["process"] and isinstance(line["message"], str)
    assert any(line["message"].startswith("ready on http") for line in logs(served)["launcher"])


def test_files_are_their_owners_only(served: Served) -> None:
    folder = served.output.parent / "logs"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_what_a_killed_worker_had_said_is_there(served: Served) -> None:
    before = served.topology()["decode:0"]["pid"]
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: served.topology()["decode:0"]["pid"] not in (None, before), 60, "a new process")
    assert any("takes a request's phase decode" in line["message"] for line in logs(served)["decode-0"])
    assert any("killed by SIGKILL" in line["message"] for line in logs(served)["launcher"])
    wait_for(lambda: [row["state"] for row in served.get("/admin/topology")["routes"]] == ["PASSED"], 60, "a test")


def test_a_launch_that_fails_says_why_as_it_says_everything(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "app.py"), "launch", "--port", "0", "--model", "no/such/model.gguf"]
    flags = ["--log-format", "json", "--log-dir", str(tmp_path / "logs")]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=START_TIMEOUT)
    (said,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1 and (said["level"], said["process"]) == ("error", "launcher")
    assert "no/such/model.gguf" in said["message"] and entries(tmp_path / "logs" / "launcher.log") == [said]


def test_a_folder_that_cannot_be_written_to_ends_the_launch_before_it_starts(tmp_path: Path, model: str) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, str(ROOT / "app.py"), "launch", "--port", "0", "--model", model, "--log-dir"]
    done = subprocess.run(
        [*command, str(tmp_path / "file" / "x")], capture_output=True, text=True, timeout=START_TIMEOUT
    )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("Error: Logs cannot be written to") and "--log-dir" in done.stderr
