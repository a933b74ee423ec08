# SPDX-License-Identifier: Apache-2.0
"""Workers and the proxy are killed repeatedly under load: every request has exactly one row, and nothing is counted
twice."""

import json
import random
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from books import differing
from command_line import app
from served import Served, launched, wait_for

READERS = 6


class UsageReader(threading.Thread):
    """Client that sends streamed requests in sequence, and keeps the usage of those that ended well, by id, which
    starts with the reader's name."""

    def __init__(self, served: Served, called: str, repeats: int = 1) -> None:
        super().__init__(daemon=True)
        self.served, self.called, self.repeats = served, called, repeats
        self.stopping = threading.Event()
        self.begun = threading.Event()
        self.usage: dict[str, dict[str, Any]] = {}
        self.sent = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            self.sent += 1
            try:
                self.ask(f"{self.called}.{self.sent}")
            except (OSError, HTTPException, ValueError, KeyError):
                self.stopping.wait(0.1)  # the proxy is down

    def ask(self, name: str) -> None:
        body = {
            "model": "smollm2-135m-instruct", "prompt": f"Question {name}:" * self.repeats,
            "max_tokens": 5 + self.sent % 20,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        events = self.served.request("POST", "/v1/completions", body, {"x-request-id": name}).events()
        usage = None
        for event in events:
            self.begun.set()
            if event == "[DONE]":
                self.usage[name] = usage or {}
            else:
                usage = json.loads(event).get("usage")


def rows_of(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM requests")]


def row_named(path: Path, name: str) -> dict[str, Any] | None:
    return next((row for row in rows_of(path) if row["name"] == name), None)


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return app(*words)


@contextmanager
def accounted(tmp_path: Path, model: str, *options: str) -> Iterator[tuple[Path, Served]]:
    """Launch with a usage log; its processes may exit often."""
    path = tmp_path / "usage.db"
    restarts = ("--restart-attempts", "100", "--restart-delay", "0.1", *options)
    tiny = ("--model", model, "--served-model-name", "smollm2-135m-instruct")
    with launched(tmp_path, *tiny, "--usage-log", str(path), *restarts) as served:
        yield path, served


def killed_under_load(
    served: Served, victim: str, chance: random.Random, rounds: int, longest: float, kill: Callable[[], None],
    repeats: int = 1,
) -> list[UsageReader]:  # fmt: skip
    """Kill a process in each round while readers send requests. At any moment up to `longest` seconds after the first
    of them was served, `kill` ends a process and waits until others can be served again. Return the readers, all of
    which have stopped."""
    pause = threading.Event()
    readers = [UsageReader(served, f"{victim}.{number}", repeats) for number in range(READERS)]
    for reader in readers:
        reader.start()
    for _ in range(rounds):
        for reader in readers:
            reader.begun.clear()
        wait_for(lambda: any(reader.begun.is_set() for reader in readers), 60, "load")
        pause.wait(chance.uniform(0, longest))  # the moment is meant to be any
        kill()
    for reader in readers:
        reader.begun.clear()
    wait_for(lambda: all(reader.begun.is_set() for reader in readers), 60, "everyone served again")
    for reader in readers:
        reader.stopping.set()
    for reader in readers:
        reader.join(60)
    wait_for(lambda: served.metric("pontil_num_requests_running") == 0, 30, "an idle server")
    assert served.metric("pontil_ledger_imbalance") == 0
    return readers


# By default tests/world compares deliveries, rows and the audit of every seed, and tests/http/test_killed_proxies.py
# kills real proxies with their database.
@pytest.mark.long
@pytest.mark.parametrize(("deaths_of_workers", "deaths_of_proxies"), [(2, 1), (30, 20)])
def test_every_request_has_one_row_whoever_is_killed(
    tmp_path: Path, model: str, deaths_of_workers: int, deaths_of_proxies: int
) -> None:  # A12
    """One launch for both: the rows of requests whose workers died are checked again after the proxy's deaths."""
    with accounted(tmp_path, model, "--max-num-batched-tokens", "64") as (path, served):
        readers = workers_are_killed(served, path, deaths_of_workers)
        others, deaths = proxies_are_killed(served, path, deaths_of_proxies)
        readers += others
        live = run("audit", str(path), "--url", f"http://127.0.0.1:{served.port}")
        assert live.returncode == 0, live.stdout
        assert served.stop() == 0
    check(path, {name: usage for reader in readers for name, usage in reader.usage.items()}, deaths)


def workers_are_killed(served: Served, path: Path, rounds: int) -> list[UsageReader]:
    """Check that every prompt is accounted for. Attempts end in mid-prompt, and later ones find the tokens they
    computed (A11). Each step computes a small part."""
    chance = random.Random(rounds)

    def kill() -> None:
        name = chance.choice(("prefill:0", "decode:0"))
        served.kill(name)
        served.living(name)

    readers = killed_under_load(served, "worker", chance, rounds, 1.0, kill, repeats=12)
    wait_for(lambda: not differing(path, served.get("/admin/ledger")), 60, "books that are equal")
    rows = rows_of(path)
    assert any(row["attempts"] > 1 for row in rows) and all(row["prompt_tokens"] > 100 for row in rows)
    return readers


def proxies_are_killed(served: Served, path: Path, rounds: int) -> tuple[list[UsageReader], int]:
    """Return the readers, and how many proxies died."""
    numbers, deaths = count(), 0

    def loses_an_open_request() -> bool:
        """Kill the proxy while a request's row is written and not closed, or let it go on; return whether the request
        is lost. From its first token on its worker is stopped, and the proxy when the row is looked at, so that the
        answer does not end in between; but a commit that closes the row may be on its way to the disk."""
        nonlocal deaths
        proxy, worker = served.living("proxy"), served.living("decode:0")
        name = f"long.{next(numbers)}"
        body = {"prompt": name, "max_tokens": 400, "n": 4, "ignore_eos": True, "stream": True}
        reply = served.request("POST", "/v1/completions", body, {"x-request-id": name})
        worker.suspend()
        try:
            wait_for(partial(row_named, path, name), 60, "a row")
            proxy.suspend()
        finally:
            worker.resume()
        row = row_named(path, name)
        is_open = row is not None and row["state"] == "open"
        proxy.send_signal(signal.SIGKILL if is_open else signal.SIGCONT)
        reply.connection.close()
        if not is_open:
            return False
        deaths += 1
        served.living("proxy", after=proxy.pid)
        wait_for(served.is_ready, 60, "a new proxy with workers")
        row = row_named(path, name)
        return row is not None and row["state"] == "lost(proxy)"

    def kill() -> None:
        # On a machine that others crowd, an answer can end before its worker is stopped.
        assert any(loses_an_open_request() for _ in range(10)), "no request was open when its row was seen"

    readers = killed_under_load(served, "proxy", random.Random(rounds), rounds, 1.5, kill)
    return readers, deaths


def check(path: Path, answered: dict[str, dict[str, Any]], rounds: int) -> None:
    rows = rows_of(path)
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names)), "one row a request"
    assert {row["state"] for row in rows} == {"closed", "lost(proxy)"}
    assert all(row["completion_tokens"] == row["delivered"] for row in rows)
    by_name = {row["name"]: row for row in rows}
    for name, usage in answered.items():
        row = by_name[name]
        assert row["state"] == "closed", "its end was sent, so its row had been written"
        assert (row["prompt_tokens"], row["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert len({row["proxy"] for row in rows}) <= rounds + 1
    audit = run("audit", str(path))
    assert audit.returncode == 0 and "DIFFER" not in audit.stdout, audit.stdout
    summed = json.loads(run("usage", str(path), "--json").stdout)
    assert sum(one["requests"] for one in summed) == len(rows)
    assert sum(one["completion_tokens"] for one in summed) == sum(row["completion_tokens"] for row in rows)
