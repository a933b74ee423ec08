# SPDX-License-Identifier: Apache-2.0
"""The script that asks quickstart's question, against a server that answers as the proxy does."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from forked_program import run_program

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "ask.py"
ANSWER = {
    "choices": [{"message": {"content": "Paris."}}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
}


class AskHandler(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        # The second worker counts as registered after two requests for it.
        self.asked.append(self.path)
        late: dict[str, object] = {"load": {}} if self.asked.count("/admin/topology") > 1 else {}
        processes = [
            {"role": "proxy", "state": "READY"},
            {"role": "prefill", "state": "READY", "load": {}},
            {"role": "decode", "state": "READY"} | late,
            {"role": "decode", "state": "GIVEN_UP"},
        ]
        known = {"/ready": {}, "/v1/models": {"data": [{"id": "small"}]}, "/admin/topology": {"processes": processes}}
        self.reply(200, known[self.path])

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if question["messages"][0]["content"] == "Why?":
            self.reply(503, {"error": {"message": "no worker is ready"}})
        else:
            assert question["model"] == "small"
            thought = {"choices": [{"message": {"content": None, "reasoning_content": "Hm,"}}]}
            self.reply(200, ANSWER | (thought if question["messages"][0]["content"] == "Who?" else {}))

    def reply(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("x-pontil-route", "prefill:0,decode:0")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Once", (AskHandler,), {"asked": []})) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def ask(url: str, pid: int, question: str) -> "subprocess.CompletedProcess[str]":
    return run_program([str(SCRIPT), url, str(pid), question])


def test_the_answer_its_usage_and_its_way_are_printed(url: str) -> None:
    done = ask(url, os.getpid(), "Where?")
    assert done.returncode == 0
    for said in ("Paris.", "7 prompt + 3 completion", "prefill:0,decode:0", f"{url}/v1", "model small"):
        assert said in done.stdout


def test_a_model_that_is_still_reasoning_is_heard(url: str) -> None:
    assert "Answer:     Hm,\n" in ask(url, os.getpid(), "Who?").stdout


def test_a_refusal_is_shown_in_one_sentence(url: str) -> None:
    done = ask(url, os.getpid(), "Why?")
    assert done.returncode == 1 and done.stderr == "The server answered 503: no worker is ready\n"


def test_waiting_ends_with_the_launch() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    done = ask("http://127.0.0.1:1", ended.pid, "Where?")
    assert done.returncode == 1 and "ended before it was ready" in done.stderr


@pytest.mark.parametrize("script", sorted(SCRIPT.parent.glob("*.sh")), ids=lambda path: path.name)
def test_shell_scripts_are_well_formed(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
