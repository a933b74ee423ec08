# SPDX-License-Identifier: Apache-2.0
"""The benchmark of spoken answers, against a server whose every answer is known."""

import base64
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from bench_spoken import SpokenTiming, table
from forked_program import run_program

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
USAGE = {"completion_tokens": 9, "completion_tokens_details": {"audio_tokens": 4}}


class SpokenHandler(BaseHTTPRequestHandler):
    asked: list[dict[str, Any]]
    ends_early = False

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(question)
        speaks = "audio" in question.get("modalities", ())
        self.send_response(200)
        self.end_headers()
        for text in ("a", " b c"):
            self.event({"delta": {"audio": {"transcript": text}} if speaks else {"content": text}})
            if speaks:
                self.event({"delta": {"audio": {"data": base64.b64encode(bytes(6000)).decode()}}})
        if self.ends_early:
            return
        self.event({"delta": {}}, usage=USAGE if speaks else {"completion_tokens": 5})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, choice: dict[str, Any], **fields: Any) -> None:
        self.wfile.write(b"data: " + json.dumps({"choices": [choice], **fields}).encode() + b"\n\n")

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    SpokenHandler.asked, SpokenHandler.ends_early = [], False
    with ThreadingHTTPServer(("127.0.0.1", 0), SpokenHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def bench(server: ThreadingHTTPServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    return run_program([str(SCRIPTS / "bench_spoken.py"), "--url", url, *arguments])


def test_rounds_take_turns_and_count_what_usage_says(server: ThreadingHTTPServer) -> None:
    done = bench(server, "--rounds", "3", "--max-tokens", "7")
    assert done.returncode == 0, done.stderr
    # 12,000 bytes are a quarter of a second; the first pair is not measured.
    assert done.stdout.startswith("| 3 rounds, 5 tokens, 0.2 s of sound | text | text and sound |\n|---|---|---|\n")
    assert len(re.findall(r"^\| .* \| .* \| .* \|$", done.stdout, re.MULTILINE)) == 6
    speaks = ["modalities" in one for one in SpokenHandler.asked]
    assert speaks == [True, False, False, True, True, False, False, True]
    assert {one["max_tokens"] for one in SpokenHandler.asked} == {7}
    assert len({one["cache_salt"] for one in SpokenHandler.asked}) == 8


def test_a_stream_that_breaks_off_is_no_figure(server: ThreadingHTTPServer) -> None:
    SpokenHandler.ends_early = True
    done = bench(server, "--rounds", "1")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "Error: a stream broke off before its end\n"


def test_figures_are_medians_of_rounds() -> None:
    text = SpokenTiming(first_text=0.1, last_text=0.5, tokens=5)
    slower = [SpokenTiming(0.2, 0.2 + 0.4 * (1 + more), 5, 0.5, 2.0, 96000) for more in (0.5, 0.1, 0.05)]
    lines = table([(text, one) for one in slower], 24000)
    assert lines[2:] == [
        "| first text, ms | 100 (100–100) | 200 (200–200) |",
        "| first sound, ms | – | 500 (500–500) |",
        "| real time | – | 1.000 (1.000–1.000) |",
        "| a token, ms | 100.00 (100.00–100.00) | 110.00 (105.00–150.00) |",
        "| overhead, % | – | 10.0 (5.0–50.0) |",
    ]
    with pytest.raises(ValueError, match="other tokens"):
        table([(text, SpokenTiming(0.1, 0.5, 6, 0.5, 2.0, 96000))], 24000)
