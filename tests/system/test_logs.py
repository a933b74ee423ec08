# SPDX-License-Identifier: Apache-2.0
"""Terminal output and one log file per process, with real processes: a request is found by its id in all of them."""

import hashlib
import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import app
from served import Served, launched, wait_for

SECRET, ADMIN, PROMPT = "sk-very-secret-9876", "sk-more-secret-5432", "the glazier whispered quietly"
KEY, ADMIN_KEY = {"authorization": f"Bearer {SECRET}"}, {"authorization": f"Bearer {ADMIN}"}
NAMES = ("launcher", "prepare", "proxy", "prefill-0", "decode-0")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: str) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "keys").write_text(f"alice={SECRET}\n")
    (folder / "keys").chmod(0o600)
    flags = ("--log-dir", str(folder / "logs"), "--log-format", "json", "--log-level", "debug")
    keys, around = ("--api-keys", str(folder / "keys")), {"PONTIL_ADMIN_KEY": ADMIN}
    with launched(folder, "--model", model, "--kv-cache-memory", "8MiB", *flags, *keys, variables=around) as one:
        yield one


def entries(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines: the last one may be being written."""
    return [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()]


def logs(served: Served) -> dict[str, list[dict[str, Any]]]:
    return {name: entries(served.output.parent / "logs" / f"{name}.log") for name in NAMES}


def test_a_request_is_found_by_its_id_in_every_process(served: Served) -> None:  # F6
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}
    headers = {"x-request-id": "mine", **KEY}
    assert served.request("POST", "/v1/completions", body, headers).json()["usage"]["completion_tokens"] == 4

    def found() -> set[str]:
        return {
            name for name, lines in logs(served).items() for line in lines
            if str(line.get("request", "")).startswith("mine-")
        }  # fmt: skip

    def summaries() -> list[dict[str, Any]]:
        return [line for line in logs(served)["proxy"] if line.get("logger") == "pontil.requests"]

    wait_for(lambda: found() == {"proxy", "prefill-0", "decode-0"}, 60, "lines of every process")
    wait_for(summaries, 60, "the line about the whole request")
    (summary,) = summaries()
    assert summary["request"].startswith("mine-") and "finish=length" in summary["message"]


def test_no_secret_and_no_prompt_is_in_any_log(served: Served) -> None:
    served.request("POST", "/v1/completions", {"model": "tiny", "prompt": PROMPT, "max_tokens": "x"}, KEY).json()
    served.request("GET", "/admin/ledger", headers={**ADMIN_KEY, "via": "1.1 front"}).json()
    served.request("GET", "/v1/models", headers={"authorization": f"Bearer {SECRET}x"}).json()
    served.request("GET", f"/v1/models?key={SECRET}").json()
    texts = [path.read_text() for path in (served.output.parent / "logs").glob("*.log")] + [served.output.read_text()]
    assert len(texts) == 1 + len(NAMES)
    assert not [text for text in texts for secret in (SECRET, ADMIN, *digests(), PROMPT) if secret in text]


def digests() -> list[str]:
    return [hashlib.sha256(key.encode()).hexdigest() for key in (SECRET, ADMIN)]


def test_no_secret_is_in_lists_of_processes_or_metrics(served: Served) -> None:  # F5
    """Only the launcher's own environment holds the secret that was passed in it."""
    launcher, *children = served.tree()
    assert len(children) == 4, "a proxy, two workers, and the server that forks them"
    lines = [Path(f"/proc/{one.pid}/cmdline").read_bytes() for one in (launcher, *children)]
    places = [*lines, *(Path(f"/proc/{one.pid}/environ").read_bytes() for one in children)]
    shown = [
        served.request("GET", path, headers=ADMIN_KEY).text()
        for path in ("/metrics", "/admin/topology", "/admin/ledger")
    ]
    places += [text.encode() for text in shown]
    assert b"--api-keys" in lines[0] and len(places) == 12
    assert not [place for place in places for secret in (SECRET, ADMIN, *digests()) if secret.encode() in place]


def test_new_keys_are_taken_over_while_it_serves(served: Served) -> None:  # F5
    """Requests from the server's own machine need the admin key too, for the admin routes."""
    status = ("status", "--url", f"http://127.0.0.1:{served.port}")
    keyless = app(*status)
    assert keyless.returncode == 1 and "the admin key is needed" in keyless.stderr
    assert "decode:0" in app(*status, PONTIL_ADMIN_KEY=ADMIN).stdout
    assert served.request("GET", "/v1/models").status == 401
    keys = served.output.parent / "keys"
    keys.write_text(f"alice={SECRET}\nbob=sk-of-bob-0123456789\n")
    served.process.send_signal(signal.SIGHUP)
    new = {"authorization": "Bearer sk-of-bob-0123456789"}
    wait_for(lambda: served.request("GET", "/v1/models", headers=new).status == 200, 60, "new keys")
    assert served.request("GET", "/v1/models", headers=KEY).status == 200
    wait_for(lambda: "API keys in use now: 2" in served.output.read_text(), 60, "a word about them")


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
    served.kill("decode:0")
    served.living("decode:0")
    assert any("takes a request's phase decode" in line["message"] for line in logs(served)["decode-0"])
    assert any("killed by SIGKILL" in line["message"] for line in logs(served)["launcher"])
    wait_for(lambda: [row["state"] for row in served.get("/admin/topology")["routes"]] == ["PASSED"], 60, "a test")


def test_a_launch_that_fails_says_why_as_it_says_everything(tmp_path: Path) -> None:
    flags = ("--log-format", "json", "--log-dir", str(tmp_path / "logs"))
    done = app("launch", "--port", "0", "--model", "no/such/model.gguf", *flags, XDG_RUNTIME_DIR=str(tmp_path))
    (said,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1 and (said["level"], said["process"]) == ("error", "launcher")
    assert "no/such/model.gguf" in said["message"] and entries(tmp_path / "logs" / "launcher.log") == [said]


def test_a_folder_that_cannot_be_written_to_ends_the_launch_before_it_starts(tmp_path: Path, model: str) -> None:
    (tmp_path / "file").touch()
    flags = ("--log-dir", str(tmp_path / "file" / "x"))
    done = app("launch", "--port", "0", "--model", model, *flags, XDG_RUNTIME_DIR=str(tmp_path))
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("Error: Logs cannot be written to") and "--log-dir" in done.stderr
