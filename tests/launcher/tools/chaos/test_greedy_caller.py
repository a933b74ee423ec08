# SPDX-License-Identifier: Apache-2.0
"""The greedy caller: it asks for more than all seats, again and again, and leaves when its time is up."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from faulty_server import SHUT, FaultyServer, faulty_server

from pontil.launcher.tools.bench.bench_run import open_session
from pontil.launcher.tools.bench.http_client import HttpClient
from pontil.launcher.tools.chaos.greedy_caller import GreedLimits, GreedRecord, GreedyCaller, burst, limits_of

LIMITS = GreedLimits(4, 12, 100)


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server() as made:
        yield made


def asked(server: FaultyServer, requests: int, failures: int = 0) -> GreedRecord:
    """Be greedy until so many requests were sent, and so many refused."""

    async def run() -> GreedRecord:
        async with open_session(10.0) as session:
            caller = GreedyCaller(HttpClient(session, server.url), "m", LIMITS, "salt")
            async with caller.asking() as record:
                while record.sent < requests or record.failed < failures:
                    await asyncio.sleep(0)
            return record

    return asyncio.run(run())


def row(name: str, seats: int | None) -> dict[str, Any]:
    role = name.partition(":")[0]
    return {"name": name, "role": role} | ({} if seats is None else {"load": {"seats": seats}})


def test_a_request_has_as_many_choices_as_the_smallest_worker_has_seats() -> None:
    models = [{"id": "other", "max_model_len": 512}, {"id": "m", "max_model_len": 8192}]
    rows = [row("proxy", None), row("prefill:0", 64), row("decode:0", 16), row("decode:1", None), row("embed:0", 2)]
    assert limits_of(rows, models, "m") == GreedLimits(16, 80, 8192)
    assert limits_of([row("mixed:0", 300)], models, "named") == GreedLimits(128, 300, 512)
    assert limits_of([row("mixed:0", None)], models, "m") == GreedLimits(128, 0, 8192), "none is known yet"


@pytest.mark.parametrize(
    ("limits", "answer", "prompt"), [(GreedLimits(64, 256, 8192), 3000, 4096), (GreedLimits(2, 3, 60), 52, 30)]
)
def test_a_burst_asks_for_all_seats_and_more_and_fits_the_context(
    limits: GreedLimits, answer: int, prompt: int
) -> None:
    bodies = list(burst(limits, "m"))
    many, large = [one for one in bodies if "n" in one], [one for one in bodies if "n" not in one]
    assert sum(one["n"] for one in many) >= 2 * limits.seats and {one["n"] for one in many} == {limits.choices}
    assert {one["max_tokens"] for one in many} == {answer} and len(large) > 1
    assert {len(one["prompt"]) for one in large} == {prompt}
    assert all(len(one["prompt"]) + one["max_tokens"] <= limits.context for one in bodies)


def test_requests_are_sent_again_when_they_have_ended_and_none_is_found_cached(server: FaultyServer) -> None:
    count = len(list(burst(LIMITS, "m")))
    record = asked(server, 3 * count)
    assert record.problem is None and len(server.asked) >= 2 * count
    salts = [body["cache_salt"] for body in server.asked]
    assert len(set(salts)) == len(salts) and all(body["stream"] for body in server.asked)


def test_greed_that_is_refused_altogether_did_not_take_place(server: FaultyServer) -> None:
    server.faults = [SHUT] * 3
    record = asked(server, 5, failures=3)
    assert (record.failed, record.failure, record.problem) == (3, "HTTP 503: no room", None)
    assert GreedRecord(3, 3, "no room").problem == "greed was refused: no room"
