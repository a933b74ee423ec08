# SPDX-License-Identifier: Apache-2.0
"""The replay of conversations, against a server whose every answer is known."""

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from forked_program import run_program

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LENGTHS = """conversation,turn,prompt_tokens,output_tokens,shared_prefix_tokens
a,0,10,4,0
a,1,20,6,14
b,0,50,4,0
b,1,90,9,54
c,0,8,8,0
"""


class ConversationHandler(BaseHTTPRequestHandler):
    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(question)
        count, prompt = question["max_tokens"], question["prompt"]
        self.send_response(200)
        self.send_header("x-pontil-route", "decode:0" if len(prompt) == 20 else f"prefill:{len(prompt) % 2}>decode:1")
        self.end_headers()
        if count == 8:
            self.event({"error": {"message": "the worker is gone"}})
            return
        self.event({"choices": [{"text": "a", "token_ids": [7] * (count - 1)}]})
        self.event({"choices": [{"text": "b", "token_ids": [9]}]})
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": len(prompt) // 2}}
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, body: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    ConversationHandler.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), ConversationHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def replay(server: ThreadingHTTPServer, path: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    url = f"http://127.0.0.1:{server.server_address[1]}"
    words = ("--url", url, "--lengths", str(path), "--pause", "0", *options)
    return run_program([str(SCRIPTS / "bench_routing.py"), *words])


def test_turns_follow_what_was_answered(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(LENGTHS)
    ran = replay(server, path, "--users", "1", "--longest", "90")
    assert ran.returncode == 1 and "the worker is gone" in ran.stderr
    first, second, third, _ = [one["prompt"] for one in ConversationHandler.asked]
    assert len(first) == 10 and second[:14] == [*first, 7, 7, 7, 9] and len(second) == 20
    assert len(third) == 50, "the second turn of b would be too long"
    assert json.loads(ran.stdout) | {"ttft_ms": None} == {
        "turns": 3, "prompt_tokens": 80, "repeated": 14, "cached": 40, "cached_of_repeated": 2.857, "whole_turns": 1,
        "ttft_ms": None, "load": {"decode:0": 16, "decode:1": 8, "prefill:0": 30},
        "skew": {"decode": 1.33, "prefill": 1.0}, "failures": 1,
    }  # fmt: skip


def test_a_file_that_has_no_lengths_is_named(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    for text in ("a,b\n1,2\n", None):
        path = tmp_path / ("none.csv" if text is None else "wrong.csv")
        if text is not None:
            path.write_text(text)
        ran = replay(server, path)
        assert ran.returncode == 2 and f"{path} has no lengths of conversations" in ran.stderr
        assert "Traceback" not in ran.stderr
