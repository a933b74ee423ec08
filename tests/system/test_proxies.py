# SPDX-License-Identifier: Apache-2.0
"""Several proxies on one port: one is killed, the others serve, and its streams go on, exactly and billed once."""

import http.client
import json
import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from books import differing
from command_line import app
from served import ROOT, Reply, Served, launched, wait_for
from tiny_llama import write_tiny_llama

TOKENS = 300
NAME = "smollm2-135m-instruct"


class ResumingReader:
    """A client that reads a stream event by event, and asks for the rest when its connection breaks."""

    def __init__(self, served: Served, seed: int, name: str) -> None:
        self.served, self.seed, self.name = served, seed, f"{name}.{seed}"
        self.body = {
            "model": NAME, "prompt": f"Question {seed}", "max_tokens": TOKENS, "seed": seed, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        self.text, self.breaks = "", 0
        self.usage: list[dict[str, Any]] = []
        self.last: str | None = None
        self.ended = False
        self.reply = self.ask()

    def ask(self) -> Reply:
        asked = {"pontil-resume": "1"} if self.last is None else {"last-event-id": self.last}
        reply = self.served.request("POST", "/v1/completions", self.body, asked | {"x-request-id": self.name})
        if self.last is None:
            assert reply.status == 200
            self.last = reply.header("x-pontil-stream")
        return reply

    def read(self, events: int) -> None:
        """Read so many events, or up to the end or a break."""
        for line in self.reply.response:
            if line.startswith(b"id: "):
                self.last = line[4:].decode().strip()
            elif line.startswith(b"data: "):
                self.take(line[6:].decode().strip())
                events -= 1
            if self.ended or events == 0:
                return
        raise ConnectionError("the stream broke")

    def take(self, data: str) -> None:
        if data == "[DONE]":
            self.ended = True
            return
        event = json.loads(data)
        assert "error" not in event, event
        self.text += "".join(choice["text"] for choice in event["choices"])
        self.usage += [event["usage"]] if event.get("usage") else []

    def finish(self) -> None:
        """Read to the end, however often the connection breaks."""
        while not self.ended:
            try:
                self.read(-1)
            except (OSError, ValueError):
                self.breaks += 1
                self.again()

    def again(self) -> None:
        def answered() -> bool:
            try:
                self.reply = self.ask()
            except OSError:
                return False
            assert self.reply.status in (200, 409, 503), self.reply.text()
            return self.reply.status == 200

        wait_for(answered, 60, "the rest of a stream")


def rows_of(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        asked = "SELECT requests.*, proxies.name AS owner FROM requests JOIN proxies ON incarnation = proxy"
        return [dict(row) for row in database.execute(asked)]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two proxies before one worker; each comes back however often it is killed."""
    folder = tmp_path_factory.mktemp("front")
    model = folder / "model"
    model.mkdir()
    write_tiny_llama(model)
    options = ("--proxies", "2", "--role", "mixed", "--model", str(model), "--served-model-name", NAME)
    restarts = ("--restart-attempts", "100", "--restart-delay", "0.1", "--resume-window", "30")
    with launched(folder, *options, *restarts) as served:
        yield served


def serves(served: Served) -> bool:
    try:
        return served.request("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 1}).status == 200
    except OSError:
        return False


def deaths_of(served: Served) -> int:
    return sum(row["restarts"] for row in served.topology().values())


def is_whole(served: Served, deaths: int) -> bool:
    """Return whether everybody is ready again after so many deaths."""
    return deaths_of(served) == deaths and all(row["state"] == "READY" for row in served.topology().values())


def expected(served: Served, seed: int) -> str:
    whole = ResumingReader(served, seed, "whole")
    whole.finish()
    return whole.text


def settled(served: Served) -> None:
    """Wait until every row has its last word, and the books of every process are equal to the rows."""
    path = served.usage_log
    wait_for(lambda: all(row["state"] != "open" for row in rows_of(path)), 60, "closed rows")
    wait_for(lambda: not differing(path, served.get("/admin/ledger")), 60, "books that are equal")


def check_rows(served: Served, readers: list[ResumingReader]) -> None:
    rows = {row["name"]: row for row in rows_of(served.usage_log)}
    for reader in readers:
        row = rows[reader.name]
        assert row["state"] == "closed" and row["completion_tokens"] == row["delivered"] == TOKENS
        assert [usage["completion_tokens"] for usage in reader.usage] == [TOKENS]
    names = [row["name"] for row in rows_of(served.usage_log)]
    assert all(names.count(reader.name) == 1 for reader in readers)


# tests/world kills proxies at any point, and tests/http/test_killed_proxies.py real ones.
@pytest.mark.long
def test_a_proxy_is_killed_and_its_streams_go_on(front: Served) -> None:  # A12
    wanted = {seed: expected(front, seed) for seed in range(4)}
    readers = [ResumingReader(front, seed, "read") for seed in wanted]
    plain = front.request("POST", "/v1/completions", readers[0].body | {"max_tokens": 400}, {"x-request-id": "plain"})
    rows = wait_for(lambda: [row for row in rows_of(front.usage_log) if row["name"] == "plain"], 30, "a row")
    for reader in readers:
        reader.read(5)
    deaths = deaths_of(front)
    front.kill(rows[0]["owner"])
    # The other one serves. A connection that the dead one had accepted is reset, and the next one is not.
    assert any(serves(front) for _ in range(3))
    for reader in readers:
        reader.finish()
    assert {reader.seed: reader.text for reader in readers} == wanted
    wait_for(lambda: is_whole(front, deaths + 1), 60, "both proxies")
    settled(front)
    check_rows(front, readers)
    (row,) = [row for row in rows_of(front.usage_log) if row["name"] == "plain"]
    assert row["state"] in ("lost(proxy)", "closed")
    plain.connection.close()


@pytest.mark.long
def test_nothing_is_lost_or_billed_twice_whichever_proxy_is_killed(front: Served) -> None:
    chance = random.Random(7)
    deaths = deaths_of(front)
    wanted = {seed: expected(front, seed) for seed in range(10, 14)}
    every: list[ResumingReader] = []
    for _ in range(8):
        readers = [ResumingReader(front, seed, f"death.{deaths}") for seed in wanted]
        for reader in readers:
            reader.read(chance.randrange(1, 60))
        front.kill(chance.choice(("proxy:0", "proxy:1")))
        deaths += 1
        for reader in readers:
            reader.finish()
        assert {reader.seed: reader.text for reader in readers} == wanted
        wait_for(lambda: is_whole(front, deaths), 60, "both proxies")  # noqa: B023
        every += readers
    assert any(reader.breaks for reader in every), "some stream was the dead one's"
    settled(front)
    check_rows(front, every)


@pytest.mark.long
def test_proxies_restart_one_after_the_other_and_no_request_breaks(front: Served) -> None:
    pids = {name: row["pid"] for name, row in front.topology().items() if row["role"] == "proxy"}
    wanted = expected(front, 20)
    readers = [ResumingReader(front, 20, f"roll.{number}") for number in range(3)]
    command = [sys.executable, str(ROOT / "app.py"), "restart", "--proxies", "--drain-timeout", "0.2"]
    rollout = subprocess.Popen(
        [*command, "--port", str(front.port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    for reader in readers:
        reader.finish()
    said, _ = rollout.communicate(timeout=120)
    assert rollout.returncode == 0 and said.splitlines()[-1] == "done", said
    assert [reader.text for reader in readers] == [wanted] * 3
    rows = front.topology()
    assert all(rows[name]["pid"] != pid for name, pid in pids.items())
    settled(front)
    check_rows(front, readers)


class Callers:
    """Clients that ask for /health without a pause, each time on a new connection. `seen` counts answers and faults."""

    def __init__(self, served: Served, number: int) -> None:
        self.served, self.seen = served, Counter[str]()
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.call) for _ in range(number)]

    def call(self) -> None:
        while not self.stopped.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=60)
            try:
                connection.request("GET", "/health")
                self.seen[str(connection.getresponse().status)] += 1
            except OSError as error:
                self.seen[type(error).__name__] += 1
            finally:
                connection.close()

    def __enter__(self) -> "Callers":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *gone: object) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(90)


def restarted(served: Served, *flags: str) -> None:
    done = app("restart", "--proxies", "--drain-timeout", "1", *flags, "--port", str(served.port))
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "done", done.stdout + done.stderr


def test_no_connection_is_reset_while_proxies_restart(front: Served) -> None:
    """The socket is the launch's: a connection that no proxy has accepted waits for one that will."""
    with Callers(front, 6) as callers:
        restarted(front)
    assert set(callers.seen) == {"200"}, callers.seen


@pytest.mark.long
def test_a_connection_waits_for_the_next_process_of_the_only_proxy(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_tiny_llama(model)
    options = ("--role", "mixed", "--model", str(model), "--served-model-name", NAME, "--restart-delay", "0.1")
    with launched(tmp_path, *options) as served:
        with Callers(served, 4) as callers:
            restarted(served, "--force")
        assert set(callers.seen) == {"200"}, callers.seen
        served.kill("proxy")
        assert served.request("GET", "/health").status == 200
