# SPDX-License-Identifier: Apache-2.0
"""The command `status` as a user sees it: a real process, against a server that answers as the proxy does."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command_line import APP, app
from forked_program import fork_program

DEADLINE = 60.0
PROXY = {"name": "proxy", "role": "proxy", "pid": 1, "state": "READY", "device": "cpu", "uptime_seconds": 1}


class StatusServer(ThreadingHTTPServer):
    """A server that reports the processes in `rows`, with the age `age`; without rows it refuses every client."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StatusHandler)
        self.rows: list[dict[str, Any]] | None = [PROXY]
        self.age: float | None = None
        self.more: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class StatusHandler(BaseHTTPRequestHandler):
    server: StatusServer

    def do_GET(self) -> None:
        assert self.path == "/admin/topology"
        rows, age = self.server.rows, self.server.age
        body: dict[str, Any] = {"error": {"message": "not now"}} if rows is None else {"processes": rows}
        body |= ({} if age is None else {"age_seconds": age}) | self.server.more
        content = json.dumps(body).encode()
        self.send_response(200 if rows is not None else 503)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *words: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[StatusServer]:
    with StatusServer() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(DEADLINE)


def run(server: StatusServer, *words: str) -> "subprocess.CompletedProcess[str]":
    return app("status", "--url", server.url, *words)


def test_once(server: StatusServer) -> None:
    done = run(server)
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["NAME", "STATE", "DEVICE", "PID", "UPTIME"],
        ["proxy", "ready", "cpu", "1", "1", "s"],
    ]
    assert json.loads(run(server, "--json").stdout) == {"processes": [PROXY]}
    assert app("status", server.url.removeprefix("http://")).stdout == done.stdout


def test_a_table_that_is_old_says_so(server: StatusServer) -> None:  # G3
    server.age = 0.9
    assert len(run(server).stdout.splitlines()) == 2
    server.age = 12.3
    assert run(server).stdout.splitlines()[2].startswith("The launcher has been silent for 12 s")
    assert json.loads(run(server, "--json").stdout) == {"processes": [PROXY], "age_seconds": 12.3}


def test_a_launch_that_allows_chaos_says_so(server: StatusServer) -> None:
    server.more = {"chaos": True}
    assert run(server).stdout.splitlines()[2].startswith("Chaos is allowed here (--allow-chaos)")


@pytest.mark.parametrize("words", [(), ("--watch",), ("--json",)])
def test_a_server_that_is_not_there_is_said_in_a_sentence(server: StatusServer, words: tuple[str, ...]) -> None:
    server.rows = None
    done = run(server, *words)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Error: not now\n")


def test_another_server_is_said_in_a_sentence(server: StatusServer) -> None:
    server.rows = {"no": "list"}  # type: ignore[assignment]
    done = run(server)
    assert done.returncode == 1 and "is no pontil" in done.stderr and "Traceback" not in done.stderr


class Watching:
    """A `status --watch` with its output on a pipe or a terminal, read as it arrives."""

    def __init__(self, server: StatusServer, reading: int, writing: int, *words: str, **variables: str) -> None:
        self.reading, self.seen = reading, ""
        around = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
        line = [str(APP), "status", "--url", server.url, "--watch", *words]
        self.process = fork_program(line, Path.cwd(), [writing] * 3, around | variables, computing=False)
        os.close(writing)

    def until(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + DEADLINE
        while self.seen.count(text) < times:
            there = select.select([self.reading], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert there, f"{text!r} was not there {times} times in {self.seen!r}"
            self.read()

    def read(self) -> bool:
        try:
            data = os.read(self.reading, 65536)
        except OSError:  # how a terminal ends
            return False
        self.seen += data.decode().replace("\r\n", "\n")
        return bool(data)

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        while self.read():
            pass
        return self.process.wait(DEADLINE)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 6, 40, 0, 0))
    yield ours, theirs
    os.close(ours)


def test_tables_follow_each_other_on_a_pipe(server: StatusServer) -> None:
    reading, writing = os.pipe()
    watching = Watching(server, reading, writing)
    watching.until("proxy", 2)
    server.rows = None
    watching.until("not now")
    server.rows = [PROXY | {"state": "DRAINING"}]
    watching.until("draining")
    assert watching.end() == 0
    os.close(reading)
    assert "\x1b" not in watching.seen and "Traceback" not in watching.seen
    assert watching.seen.startswith("NAME ") and "\n\nNAME " in watching.seen


def test_tables_replace_each_other_on_a_terminal(server: StatusServer, terminal: tuple[int, int]) -> None:
    server.rows = [PROXY | {"name": f"decode:{number}", "reason": "x" * 100} for number in range(3)]
    watching = Watching(server, *terminal)
    watching.until("decode:2", 2)
    server.rows = [PROXY] * 20
    watching.until("and 17 more")
    assert watching.end() == 0
    first, second, *_ = watching.seen.split("\x1b[J")
    assert first.count("\n") == 4 and second.startswith("\x1b[4F"), "it goes back by what it has drawn"
    assert "\x1b[32mready\x1b[0m" in first and "\x1b[31m" not in first, "only the state has a colour"
    assert all(len(re.sub(r"\x1b\[[\d;]*[mK]", "", line)) <= 40 for line in first.splitlines())
    assert watching.seen.split("\x1b[J")[-2].count("\n") < 6, "no more lines than the terminal has"
    assert "Traceback" not in watching.seen and "Aborted" not in watching.seen


def test_a_terminal_without_colours_has_none(server: StatusServer, terminal: tuple[int, int]) -> None:
    watching = Watching(server, *terminal, NO_COLOR="1")
    watching.until("proxy", 1)
    assert watching.end() == 0
    assert "\x1b[32m" not in watching.seen and "ready" in watching.seen


def test_json_is_an_object_a_line(server: StatusServer) -> None:
    reading, writing = os.pipe()
    watching = Watching(server, reading, writing, "--json")
    watching.until("\n", 2)
    server.rows = None
    watching.until('{"error": "not now"}')
    assert watching.end() == 0
    os.close(reading)
    assert json.loads(watching.seen.splitlines()[0]) == {"processes": [PROXY]}


def test_a_reader_that_leaves_ends_it_quietly(server: StatusServer) -> None:
    reading, writing = os.pipe()
    watching = Watching(server, reading, writing)
    watching.until("proxy")
    os.close(reading)
    assert watching.process.wait(DEADLINE) == 0
