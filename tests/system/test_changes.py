# SPDX-License-Identifier: Apache-2.0
"""A running system is changed under load, by an operator's commands, without effect on any client."""

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from command_line import APP, app, obeyed
from disturbed import MODEL, DisturbedSite, bodies
from effort import is_long
from forked_program import fork_program
from oracle import at_rest
from served import START_TIMEOUT, Served, launched, wait_for
from streams import Streams
from tiny_llama import write_tiny_llama

# tests/world restarts workers, drains them and changes their roles under load, at any point.
LONG = pytest.mark.long
# Answers that take longer than a command does to arrive, and than requests then get: so some are moved.
TOKENS = 160 if is_long() else 300
SOON = ("--drain-timeout", "0.1")
# Seconds within which enough is measured of a load for a change: half a minute alone, more beside other tests.
SURE = 900


def pontil(served: Served, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line for this launch."""
    return app(*words, "--port", str(served.port))


class RolloutLoad:
    """Clients that ask until they are stopped, and three times at least, one after the other, each its own body;
    `answers` are those of each."""

    def __init__(self, served: Served, asked: list[dict[str, Any]]) -> None:
        self.served, self.asked, self.stopping = served, asked, threading.Event()
        self.answers: list[list[Any]] = [[] for _ in asked]
        self.threads = ThreadPoolExecutor(len(asked))
        self.ends = [self.threads.submit(self.ask, number) for number in range(len(asked))]

    def ask(self, number: int) -> None:
        while not self.stopping.is_set() or len(self.answers[number]) < 3:
            (told,) = Streams(self.served, [self.asked[number]]).finish()
            self.answers[number].append((told.choices, told.error, told.done))

    def __enter__(self) -> "RolloutLoad":
        return self

    def __exit__(self, *gone: object) -> None:
        self.stopping.set()
        self.threads.shutdown()

    def check(self) -> None:
        """Check that nothing failed, and that equal requests had equal responses."""
        for end in self.ends:
            end.result()
        for told in self.answers:
            assert len(told) > 2 and all(one == told[0] for one in told)
            _, error, done = told[0]
            assert error is None and done


def in_flight(row: dict[str, Any]) -> int:
    return int(row.get("load", {}).get("in_flight", 0))


def failovers(site: DisturbedSite, cause: str) -> float:
    return site.served.metric(f'pontil_failovers_total{{cause="{cause}"}}')


def pids(served: Served) -> dict[str, int]:
    return {name: row["pid"] for name, row in served.topology().items()}


@pytest.fixture(scope="module")
def pair(small_pair: Served) -> DisturbedSite:
    return DisturbedSite(small_pair, TOKENS)


def under_way(streams: Streams) -> None:
    wait_for(lambda: streams.all_have(4), 120, "tokens of every stream")


@LONG
def test_a_rolling_restart_under_load(pair: DisturbedSite) -> None:
    """In-flight streams are moved, and clients that send requests throughout see no failure."""

    def harm(streams: Streams) -> None:
        under_way(streams)
        with RolloutLoad(pair.served, bodies("the same, ", 24)[:2]) as load:
            said = obeyed(pair.served.port, "restart", "--all", *SOON)
        assert said.count("is ready after") == 2
        load.check()

    before = [failovers(pair, cause) for cause in ("died", "failed")]
    pair.survives(harm, "prefill:0", "decode:0")
    assert [failovers(pair, cause) for cause in ("died", "failed")] == before


@pytest.mark.parametrize("loaded", [False, pytest.param(True, marks=LONG)], ids=["alone", "under load"])
def test_a_worker_is_drained_and_roles_change(pair: DisturbedSite, loaded: bool) -> None:
    """The drained worker's streams leave it, and it comes back; a change of role keeps the cache."""
    body = {"model": MODEL, "prompt": [50 + i for i in range(200)], "max_tokens": 8, "temperature": 0}

    def cached() -> tuple[int, list[int]]:
        reply = pair.served.request("POST", "/v1/completions", body | {"return_token_ids": True}).json()
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"], reply["choices"][0]["token_ids"]

    _, ids = cached()
    salts = count()

    def new_route() -> str | None:
        unseen = body | {"cache_salt": f"new {next(salts)}"}
        return pair.served.request("POST", "/v1/completions", unseen).header("x-pontil-route")

    def change() -> None:
        drain_and_undrain(pair)
        obeyed(pair.served.port, "role", "prefill:0", "decode")
        assert cached()[1] == ids
        obeyed(pair.served.port, "role", "decode:0", "prefill")
        assert cached()[0] >= 192
        # Which worker has least to do depends on the streams: a prompt that nobody has cached takes both in the end.
        wait_for(lambda: new_route() == "decode:0>prefill:0", 60, "a pair in the new roles")

    def harm(streams: Streams) -> None:
        under_way(streams)
        change()

    def back() -> None:
        obeyed(pair.served.port, "role", "prefill:0", "prefill")
        obeyed(pair.served.port, "role", "decode:0", "decode")

    before = pids(pair.served)
    if loaded:
        pair.survives(harm, mended=back)
    else:
        change()
        back()
    assert pids(pair.served) == before


def drain_and_undrain(pair: DisturbedSite) -> None:
    """Check that the decode worker's streams move, and that the other worker serves alone meanwhile. Whatever a command
    takes, one stream lasts longer."""
    moved = failovers(pair, "moved")
    longest = {"model": MODEL, "prompt": [7], "max_tokens": 1900, "ignore_eos": True, "stream": True}
    reply = pair.served.request("POST", "/v1/completions", longest)
    next(reply.events())
    obeyed(pair.served.port, "drain", "decode:0", *SOON)
    assert pair.served.topology()["decode:0"]["state"] == "DRAINED"
    assert pair.answer_about_a_capital() == pair.capital
    wait_for(lambda: failovers(pair, "moved") > moved, 60, "the count of the streams that moved")
    reply.response.close()
    reply.connection.close()
    obeyed(pair.served.port, "undrain", "decode:0")


@LONG
def test_workers_come_and_go_under_load(pair: DisturbedSite) -> None:
    def harm(streams: Streams) -> None:
        under_way(streams)
        obeyed(pair.served.port, "scale", "--decode", "2")
        assert pair.served.topology()["decode:1"]["state"] == "READY"
        more = Streams(pair.served, bodies("more, ", TOKENS))
        under_way(more)
        obeyed(pair.served.port, "scale", "--decode", "1", *SOON)
        assert [told.answer for told in more.finish()] == pair.answers

    pair.survives(harm)
    assert "decode:1" not in at_rest(pair.served).processes


def test_mistakes_are_one_sentence(pair: DisturbedSite) -> None:
    for words, code, said in (
        (("drain", "decode:7"), 2, "this launch has prefill:0, decode:0"),
        (("restart",), 2, "--all"),
        (("scale",), 2, "--decode 2"),
        (("drain", "decode:0", "prefill:0"), 1, "Nobody else would serve"),
    ):
        done = pontil(pair.served, *words)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False) and said in done.stderr
    done = app("drain", "decode:0", "--port", "1")
    assert done.returncode == 1 and f"http://127.0.0.1:{pair.served.port}" in done.stderr


@LONG
def test_a_group_that_ends_hands_its_streams_to_the_others(tmp_path: Path) -> None:  # G4
    """Its proxy is another launch's, which learns of it from the workers themselves. By default launches come and are
    told to end in the upgrades of tests/world."""
    write_tiny_llama(tmp_path / "tiny", max_model_len=1024)
    alike = ("--model", str(tmp_path / "tiny"), "--kv-cache-memory", "32MiB")
    door = f"ipc://{tmp_path}/control"
    asked = [
        {"model": "tiny", "prompt": [10 + number], "max_tokens": 300, "ignore_eos": True, "seed": number}
        for number in range(8)
    ]
    with launched(tmp_path, "--role", "mixed", "--mixed", "cpu:0", "--control", door, *alike) as served:
        line = [str(APP), "launch", "--role", "decode", "--join", door, *alike, "--decode", "cpu:1"]
        with (tmp_path / "group").open("w+b") as said:
            group = fork_program([*line, "--drain-timeout", "0"], tmp_path, [said.fileno()] * 3, os.environ)
        try:
            wait_for(lambda: "decode:0" in pids(served), START_TIMEOUT, "the other group")
            with RolloutLoad(served, asked) as load:
                wait_for(lambda: in_flight(served.topology()["decode:0"]) > 0, 60, "a heartbeat that tells of them")
                group.terminate()
                assert group.wait(120) == 0, (tmp_path / "group").read_text()
        finally:
            group.kill()
        load.check()
        assert served.metric('pontil_failovers_total{cause="moved"}') > 0
        assert served.metric("pontil_ledger_imbalance") == 0
        assert not served.metric('pontil_failovers_total{cause="silent"}')


# Clients of which each asks anew when it has its answer: they give workers of any speed as much as they can do.
ANSWERED, PROMPTING = 16, 6
THREE_WORKERS = ("--prefill", "cpu:0,cpu:1", "--decode", "cpu:1", "--share-devices", "--disagg", "always")


def of_ids(clients: int, prompt: int, answer: int) -> list[dict[str, Any]]:
    """Return a request of each client."""
    body = {"model": MODEL, "max_tokens": answer, "ignore_eos": True, "temperature": 0}
    return [body | {"prompt": [100 + client, *range(200, 199 + prompt)]} for client in range(clients)]


def workers_of(served: Served, role: str) -> int:
    return sum((row.get("assigned_role") or row["role"]) == role for row in served.topology().values())


@LONG  # A load goes on until what is measured of it is sure enough for a change; the choice is tried in virtual time.
def test_roles_follow_a_load_that_shifts(tmp_path: Path) -> None:
    """While answers are asked for two workers decode, and while prompts are two compute these; answers stay equal."""
    with launched(tmp_path, *THREE_WORKERS, "--balance", "auto", "--no-prefix-caching") as served:
        assert (workers_of(served, "prefill"), workers_of(served, "decode")) == (2, 1)
        with RolloutLoad(served, of_ids(ANSWERED, 16, 120)) as answers:
            wait_for(lambda: workers_of(served, "decode") == 2, SURE, "a second decode worker")
        answers.check()
        with RolloutLoad(served, of_ids(PROMPTING, 600, 2)) as prompts:
            wait_for(lambda: workers_of(served, "prefill") == 2, SURE, "a second prefill worker")
        prompts.check()
        assert served.metric("pontil_ledger_imbalance") == 0
        assert not served.metric('pontil_failovers_total{cause="died"}')
