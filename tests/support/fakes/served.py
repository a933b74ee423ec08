# SPDX-License-Identifier: Apache-2.0
"""The real command line, started as by a user, and a plain HTTP client for it."""

import errno
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
from books import requests_that_differ
from forked_program import ForkedProgram, fork_program, launch_environment
from process_state import has_ended

ROOT = Path(__file__).resolve().parents[3]
APP = ROOT / "app.py"
START_TIMEOUT = 240.0
# The least and the most seconds between two looks at a process that is waited for.
PAUSES = 0.02, 0.2
LISTENING_PORTS = range(20000, 32768)
GIVEN_PORTS: list[socket.socket] = []
T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], timeout: float, what: str) -> T:
    """Return the first true value of `condition`, polled until the deadline."""
    begin = asked = time.monotonic()
    while not (value := condition()):
        now = time.monotonic()
        assert now < begin + timeout, f"{what} did not happen within {timeout:.0f} s"
        # Polls another process, which cannot be waited for; what costs much is asked seldom.
        time.sleep(min(max(PAUSES[0], 3 * (now - asked)), PAUSES[1]))
        asked = time.monotonic()
    return value


def free_port() -> int:
    """Return a port on which nothing listens and that no other process of these tests is given while this one lives.

    It lies below the ports from which Linux chooses for outgoing connections (32768 and up, unless configured): one
    of those could be taken before the started process has bound it. An abstract socket's name marks it as given."""
    for port in random.SystemRandom().sample(LISTENING_PORTS, len(LISTENING_PORTS)):
        mark = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                mark.bind(f"\0pontil-tests-port-{port}")
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                mark.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
        GIVEN_PORTS.append(mark)
        return port
    raise AssertionError("every port below 32768 is in use")


class Served:
    """One running `app.py launch`. `output` is the file of its terminal output, `usage_log` that of its proxy, if it
    has one; `get` and `complete` show its admin key, if it has one."""

    def __init__(
        self, process: subprocess.Popen[bytes] | ForkedProgram, port: int, output: Path, usage_log: Path,
        admin_key: str | None = None,
    ) -> None:  # fmt: skip
        self.process, self.port, self.output, self.usage_log = process, port, output, usage_log
        self.key = {} if admin_key is None else {"authorization": f"Bearer {admin_key}"}

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> "Reply":
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
        return Reply(connection)

    def get(self, path: str) -> Any:
        return self.request("GET", path, headers=self.key).json()

    def complete(self, prompt: Any, **options: Any) -> dict[str, Any]:
        """Return one whole completion, greedy unless the options differ."""
        body = {"model": "smollm2-135m-instruct", "prompt": prompt, "temperature": 0, "return_token_ids": True}
        reply = self.request("POST", "/v1/completions", body | options, self.key)
        answer: dict[str, Any] = reply.json()
        assert reply.status == 200, answer
        return answer

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the events of a stream, which must end with [DONE]."""
        reply = self.request("POST", path, body | {"stream": True, "stream_options": {"include_usage": True}})
        assert reply.status == 200 and str(reply.header("content-type")).startswith("text/event-stream")
        events = list(reply.events())
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def topology(self) -> dict[str, dict[str, Any]]:
        """Return the processes by name, as /admin/topology lists them."""
        answer = self.get("/admin/topology")
        rows = answer["processes"] if isinstance(answer, dict) else answer
        return {row["name"]: row for row in rows}

    def metric(self, name: str) -> float:
        """Return the value of one metric line, labels included in the name; 0 when it is absent."""
        for line in self.request("GET", "/metrics", headers=self.key).text().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[-1])
        return 0.0

    def tree(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]

    def child(self, name: str, rank: int = 0) -> psutil.Process | None:
        """Return the process of a child that is ready, or of a rank of it; None while there is none. For a while after
        its end a process is still in the table, as if nothing had happened."""
        try:
            row = self.topology().get(name, {})
        except (OSError, http.client.HTTPException):
            return None  # the proxy that was asked has ended
        pids = [one.get("pid") for one in row.get("ranks") or [row]]
        if row.get("state") != "READY" or rank >= len(pids):
            return None
        return next((one for one in self.tree() if one.pid == pids[rank] and not has_ended(one)), None)

    def living(self, name: str, rank: int = 0, after: int | None = None) -> psutil.Process:
        """Wait for the process of a child that is ready, or of a rank of it. `after` is the pid of an earlier one that
        may not have ended yet."""

        def other() -> psutil.Process | None:
            found = self.child(name, rank)
            return found if found is not None and found.pid != after else None

        return wait_for(other, START_TIMEOUT, f"a process of {name}")

    def kill(self, *names: str, number: signal.Signals = signal.SIGKILL, rank: int = 0) -> None:
        """Send a signal to the living processes of these children; after a SIGKILL, wait for their ends."""
        victims = [self.living(name, rank) for name in names]
        for victim in victims:
            victim.send_signal(number)
        for victim in victims if number is signal.SIGKILL else ():
            victim.wait(60)

    def is_ready(self) -> bool:
        """Return whether every planned process has registered and requests can be served."""
        assert self.process.poll() is None, f"the launch ended:\n{self.output.read_text()}"
        if "ready on http" not in self.output.read_text():
            return False
        try:
            return self.request("GET", "/ready").status == 200
        except OSError:
            return False

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Reply:
    """An HTTP response, read as it arrives."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        self.response = connection.getresponse()
        self.status = self.response.status

    def header(self, name: str) -> str | None:
        return self.response.getheader(name)

    def text(self) -> str:
        try:
            return self.response.read().decode()
        finally:
            self.connection.close()

    def json(self) -> Any:
        return json.loads(self.text())

    def events(self) -> Iterator[str]:
        """Yield the data of each server-sent event as it arrives."""
        for line in self.response:
            if line.startswith(b"data: "):
                yield line[6:].decode().rstrip("\n")
        self.connection.close()


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Limit processes started inside to this many cores, if there are as many."""
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(ours)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


@contextmanager
def launched(
    folder: Path, *arguments: str, ready: bool = True, variables: Mapping[str, str] | None = None, app: Path = APP,
    by_exec: bool = False,
) -> Iterator[Served]:  # fmt: skip
    """Run `app.py launch` with these arguments on a free port, and stop and reap it at the end. Whatever a test does,
    every ended request must be accounted for (A11).

    It is forked from a process that has imported everything, which saves most of a start, unless a test is about the
    start itself (`by_exec`) or the program is another checkout's. `variables` are added to its environment."""
    port, output = free_port(), folder / "output"
    command = [str(app), "launch", "--port", str(port), *arguments]
    usage_log = folder / f"usage-{port}.db"
    if "--usage-log" in arguments:
        usage_log = Path(arguments[arguments.index("--usage-log") + 1])
    elif "--join" not in arguments:
        command += ["--usage-log", str(usage_log)]
    around = {**launch_environment(), **(variables or {})}
    process: subprocess.Popen[bytes] | ForkedProgram
    with output.open("wb") as file, open(os.devnull) as nothing:
        if by_exec or not app.is_relative_to(ROOT):
            process = subprocess.Popen(
                [sys.executable, *command], cwd=folder, stdout=file, stderr=subprocess.STDOUT, env=around
            )
        else:
            process = fork_program(command, folder, [nothing.fileno(), file.fileno(), file.fileno()], around)
    served = Served(process, port, output, usage_log, (variables or {}).get("PONTIL_ADMIN_KEY"))
    try:
        if ready:
            wait_for(served.is_ready, START_TIMEOUT, "readiness")
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    assert requests_that_differ(usage_log) == []
