# SPDX-License-Identifier: Apache-2.0
"""The comparison of servers, beside processes that answer as servers do at once."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bench_compare
import pytest
from forked_program import run_program
from served import free_port

ROOT = Path(__file__).parents[2]
# It answers one token, and is ready after as many looks as its last argument says.
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

looks = [int(sys.argv[-1])]

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *said):
        pass

    def do_GET(self):
        looks[0] -= 1
        self.send_response(503 if looks[0] >= 0 else 200)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert asked["model"] == "some-model" and len(asked["prompt"]) == 256, asked
        self.send_response(200)
        self.end_headers()
        usage = {"prompt_tokens": 256, "completion_tokens": 1}
        for event in ({"choices": [{"text": "a"}]}, {"choices": [], "usage": usage}):
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")

port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def compared(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_program([str(ROOT / "scripts/bench_compare.py"), "--rounds", "1", "--requests", "1", *arguments])


@pytest.fixture
def server(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return path


def test_launches_are_compared_by_their_start_their_memory_and_each_load(server: Path) -> None:
    port = free_port()
    command = f"{sys.executable} {server} --port {port}"
    run = compared(
        "--launch", f"new={command} 3", "--launch", f"old={command} 0", "--url", f"http://127.0.0.1:{port}",
        "--model", "some-model", "--concurrency", "1", "2",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in run.stdout.splitlines()]
    assert {(line["ours"], line["peer"]) for line in lines} == {("new", "old")}
    loads = ("ttft_ms_median", "tpot_ms_median", "output_tokens_per_second")
    assert [(line["concurrency"], line["figure"]) for line in lines if line["concurrency"] == 0] == [
        (0, "ready_seconds"),
        (0, "pss_mib"),
    ]
    assert [(line["concurrency"], line["figure"]) for line in lines[2:]] == [
        (n, name) for n in (1, 2) for name in loads
    ]
    of_one_token = [line for line in lines if line["figure"] == "tpot_ms_median"]
    assert all(line["ratio_median"] is None and line["ours_median"] == 0 for line in of_one_token)
    pss = lines[1]
    assert pss["ours_median"] > 1 and pss["ratio_median"] == pytest.approx(1, rel=0.5)


def test_a_llama_server_has_the_file_the_cores_and_a_seat_for_each_stream() -> None:
    arguments = argparse.Namespace(
        url="http://127.0.0.1:8123", llama_url="http://127.0.0.1:8124", model="one", concurrency=[1, 4]
    )
    ours, theirs = bench_compare.beside_llama(Path("bin"), Path("a.gguf"), arguments)
    cores = str(len(os.sched_getaffinity(0)))
    assert " ".join(theirs.command) == (
        f"bin/llama-server --model a.gguf --threads {cores} --parallel 4 --ctx-size 2048 --port 8124"
    )
    named = ["app.py", "launch", "--model", "a.gguf", "--served-model-name", "one", "--port", "8123"]
    assert ours.command[1:] == [*named, "--first-byte-timeout", "600", "--kv-transfer-timeout", "600"]
    assert (ours.url, theirs.url) == (arguments.url, arguments.llama_url)


def test_a_server_that_ends_before_it_is_ready_is_told_with_its_last_line() -> None:
    command = f"{sys.executable} -c 'raise SystemExit(\"no room\")'"
    run = compared("--launch", f"new={command}", "--url", f"http://127.0.0.1:{free_port()}")
    assert run.returncode == 1 and "new was not ready: no room" in run.stderr


def test_a_request_that_fails_ends_the_comparison(server: Path) -> None:
    port = free_port()
    command = f"{sys.executable} {server} --port {port} 0"
    run = compared("--launch", f"new={command}", "--url", f"http://127.0.0.1:{port}", "--model", "another-model")
    assert run.returncode == 1 and "new failed 2 requests" in run.stderr


@pytest.mark.parametrize("given", [(), ("--llama", "bin"), ("--gguf", "file")])
def test_what_is_missing_is_said(given: tuple[str, ...]) -> None:
    run = compared(*given)
    assert run.returncode == 2 and ("name --launch" in run.stderr if not given else "go together" in run.stderr)
