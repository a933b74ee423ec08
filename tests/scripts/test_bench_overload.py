# SPDX-License-Identifier: Apache-2.0
"""The overload benchmark, against a server whose every answer is known."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path

import pytest
from forked_program import run_program

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
EVENT = b'data: {"choices": [{"text": "x"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 1}}\n\n'
DONE = b"data: [DONE]\n\n"
# Status and body of each kind of answer.
KINDS = {
    "answered": (200, EVENT + USAGE + DONE),
    "refused": (503, b'{"error": {"message": "too much"}}'),
    "limited": (429, b'{"error": {"message": "your key"}}'),
    "broken": (200, EVENT + b'data: {"error": {"message": "it broke"}}\n\n'),
    "short": (200, EVENT),
    "wrong": (500, b"{}"),
}
ORDER = ("answered", "refused", "answered", "limited", "answered", "broken", "answered", "short", "answered", "wrong")


class AnswerServer:
    """A server that gives its kinds of answers in turn and records the keys of its clients."""

    def __init__(self) -> None:
        self.turns, self.sent, self.keys = cycle(ORDER), Counter[str](), set[str | None]()
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(200, json.dumps({"processes": [{"role": "proxy", "rss_bytes": 99 << 20}]}).encode())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                with outer.lock:
                    kind = next(outer.turns)
                    outer.sent[kind] += 1
                    outer.keys.add(self.headers["Authorization"])
                self.reply(*KINDS[kind])

            def reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.end_headers()
                # Head and body arrive separately, as they may on any network. Nothing tells when a reader has taken the
                # head; if both arrive together after all, the answer is only easier to read.
                self.wfile.flush()
                time.sleep(0.02)
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def bench(self, *words: str) -> list[dict[str, str]]:
        """Run the benchmark and return its table, a dict of columns for each row."""
        url = f"http://127.0.0.1:{self.http.server_port}"
        done = run_program([str(SCRIPTS / "bench_overload.py"), "--url", url, "--prompt-tokens", "3", *words])
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]


@pytest.fixture
def server() -> Iterator[AnswerServer]:
    made = AnswerServer()
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_every_outcome_is_counted_once(server: AnswerServer) -> None:
    words = ("--seconds", "1", "--streams", "2", "--times", "0.5", "1", "--capacity", "20")
    table = server.bench(*words)
    assert [row["load"] for row in table] == ["closed 2", "0.5x", "1x"]
    sums = {name: sum(int(row[name]) for row in table) for name in ("sent", "answered", "late", "refused", "cut")}
    # One warm-up request goes first and is in no row.
    assert sums["sent"] == server.sent.total() - 1
    assert sums["answered"] == server.sent["answered"] - 1 and sums["late"] == 0
    assert sums["refused"] == server.sent["refused"] + server.sent["limited"]
    assert sums["cut"] == server.sent["broken"] + server.sent["short"] + server.sent["wrong"]
    assert {row["rss_mib"] for row in table} == {"99"} and server.keys == {None}


def test_a_late_first_token_is_no_answer_in_time(server: AnswerServer) -> None:
    server.turns = cycle(["answered"])
    table = server.bench("--seconds", "0.5", "--streams", "1", "--times", "0.1", "--deadline", "0")
    # Without an answer in time there is no capacity, so no further load is run.
    assert [row["load"] for row in table] == ["closed 1"]
    assert int(table[0]["answered"]) == 0 < int(table[0]["late"]) <= server.sent["answered"] - 1


def test_keys_are_those_of_the_servers_file(server: AnswerServer, tmp_path: Path) -> None:
    server.turns = cycle(["answered"])
    keys = tmp_path / "keys"
    keys.write_text("# two\nalice=aaaaaaaaaaaaaaaaaaaa weight=2\nbob=bbbbbbbbbbbbbbbbbbbb\n")
    words = ("--seconds", "0.5", "--streams", "1", "--times", "0.1", "--capacity", "20")
    table = server.bench(*words, "--keys", str(keys), "--greedy", "alice", "--modest", "bob")
    assert [row["load"] for row in table] == ["closed 1", "0.1x", "modest alone", "modest beside", "greedy 0.1x"]
    assert server.keys == {"Bearer aaaaaaaaaaaaaaaaaaaa", "Bearer bbbbbbbbbbbbbbbbbbbb"}
