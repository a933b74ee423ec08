# SPDX-License-Identifier: Apache-2.0
"""HumanEval against a server whose every completion is known: what passes its tests, and what is run of it."""

import gzip
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import bench_answers
import bench_humaneval
import pytest
from bench_humaneval import CodeTask

PROMPT = "def double(number):\n"
TASK = CodeTask("Test/0", PROMPT, "def check(made):\n    assert made(3) == 6", "double")
COMPLETIONS = {
    "right": "    return 2 * number\n",
    "wrong": "    return number\n",
    "no code": "    return (",
    "endless": "    while True: pass\n",
    "greedy": "    return len(bytearray(1 << 34)) and 6\n",
    "writing": "    import os\n    return os.write(os.open('file', os.O_WRONLY | os.O_CREAT), b'abcdef')\n",
}


@pytest.fixture
def url() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert body["temperature"] == 0 and self.path == "/v1/completions" and "\ndef" in body["stop"]
            name = body["prompt"].removesuffix(PROMPT).strip("# \n")
            self.send_response(200)
            self.end_headers()
            event = json.dumps({"choices": [{"text": COMPLETIONS[name], "finish_reason": "stop"}]})
            self.wfile.write(f"data: {event}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["right", "wrong", "no code", "greedy", "writing"])
def test_functions_are_judged_by_their_tests(name: str) -> None:
    assert TASK.passes(COMPLETIONS[name]) is (name == "right")


def test_a_function_without_an_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_humaneval, "SECONDS", 1)
    assert not TASK.passes(COMPLETIONS["endless"])


def test_a_server_has_a_figure(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"task_id": name, "prompt": f"# {name}\n{PROMPT}", "test": TASK.test, "entry_point": "double", "more": 1}
        for name in ("right", "wrong", "no code")
    ]
    with gzip.open(tmp_path / "tasks.gz", "wt") as file:
        file.write("".join(f"{json.dumps(row)}\n" for row in rows))
    table = tmp_path / "history.md"
    table.write_text("| processor | way | HumanEval |\n|---|---|---|\n")
    monkeypatch.setattr(bench_answers, "TABLE", table)
    words = ["bench_humaneval.py", "--url", url, "--file", str(tmp_path / "tasks.gz"), "--record"]
    monkeypatch.setattr(sys, "argv", words)
    assert bench_humaneval.main() == 0
    assert json.loads(capsys.readouterr().out) == {"way": "server", "passed": "1/3", "different": 0, "failures": []}
    assert " | server | 1/3 | 0 | `scripts/bench_humaneval.py" in table.read_text()
