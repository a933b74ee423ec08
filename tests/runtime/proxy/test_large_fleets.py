# SPDX-License-Identifier: Apache-2.0
"""A request's routing among hundreds of workers: what is kept between requests is what would be computed anew, and the
work for each worker is little."""

import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fleet_proxy import fleet_proxy, hello_of, submit

from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.proxy.fleet.group_members import Members
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.fleet.service_rate import Seats
from pontil.runtime.proxy.requests.ticket import NO_KEY
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Heartbeat, RoleChange


def calls_of(work: Callable[[], object]) -> int:
    """Return the number of functions that are called, those of C included."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("roles", [("prefill", "decode"), ("mixed",)], ids="+".join)
@pytest.mark.parametrize("shared", [0, 20], ids=["nothing cached", "all have the beginning"])
def test_a_worker_more_is_little_work_more(
    tmp_path: Path, tokenizer: Tokenizer, roles: tuple[str, ...], shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was 65 calls for each worker and request. Time stands still: what is looked at once in a while is no part."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    calls = []
    for size in (30, 300):
        made = fleet_proxy(tmp_path / str(size), tokenizer, size, roles, shared)
        for _ in range(5):
            submit(made.proxy)
        calls.append(min(calls_of(lambda made=made: submit(made.proxy)) for _ in range(5)))  # type: ignore[misc]
        assert len(made.sent) == 10 * len(roles), "each is sent to its workers at once"
    assert (calls[1] - calls[0]) / 270 < 20


def test_a_batch_of_messages_beside_a_request_that_waits(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """All seats are taken. It was 30 calls for each worker, with every batch."""
    made = fleet_proxy(tmp_path, tokenizer, 300, ("prefill", "decode"), 20)
    for worker in made.proxy.registry.workers.values():
        worker.seat(FairShare.of(NO_KEY, 1.0), 2 * worker.seats)
    submit(made.proxy)
    assert len(made.proxy.queue) == 1 and calls_of(made.proxy.admissions.dispatch) < 300 * 10


def test_the_topology_is_one_look_at_each_worker(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """It was one at each worker for each row."""
    calls = []
    for size in (30, 300):
        made = fleet_proxy(tmp_path / str(size), tokenizer, size, ("mixed",))
        about = [{"name": one.hello.name, "role": "mixed", "pid": one.hello.pid, "state": "ready", "device": "cpu"}
                 for one in made.proxy.registry.workers.values()]  # fmt: skip
        made.proxy.take_table(about)
        looks = 0

        class Looking(dict[str, RegisteredWorker]):
            """Workers whose looks are counted."""

            def values(self) -> Any:
                nonlocal looks
                for worker in super().values():
                    looks += 1
                    yield worker

        made.proxy.registry.workers = Looking(made.proxy.registry.workers)
        rows = made.proxy.topology()
        assert len([row for row in rows if "load" in row]) == size
        calls.append(looks)
    assert calls[1] <= 10 * calls[0]


def rebuilt(worker: RegisteredWorker) -> RegisteredWorker:
    """Return the same worker, of which nothing is kept."""
    made = RegisteredWorker(worker.hello, worker.contact)
    for name in ("in_flight", "seat_counts", "prompt_counts", "uncomputed", "free_blocks", "recent", "others"):
        setattr(made, name, getattr(worker, name))
    return made


def test_what_is_kept_of_workers_is_what_they_are() -> None:
    """Any events, in any order, change what is kept."""
    for seed in range(8):
        source, registry = random.Random(seed), Registry(ttl=5.0)
        for turn in range(200):
            known = list(registry.workers)
            happens(source, registry, known, turn)
            group = registry.generating
            mine = [worker for worker in registry.workers.values() if worker.group is None]
            assert group.current == Members.of(mine, registry.version)
            assert group.seats == Seats.of([worker for worker in mine if not worker.leaving])
            assert [load.name for load in group.loads] == [one.hello.name for one in mine if not one.leaving]
            for worker in mine:
                found = source.choice([0, 16, 32])
                assert worker.load_with(found) == rebuilt(worker).load_with(found)


def happens(source: random.Random, registry: Registry, known: list[str], turn: int) -> None:
    """Let something happen to a worker."""
    name = source.choice(known) if known else ""
    change = source.randrange(9) if known else 0
    if change == 0:
        role = source.choice(["prefill", "decode", "mixed"])
        version = source.choice([None, "1"])
        assert registry.hello(replace(hello_of(turn, role), version=version), 0.0) is None
    elif change == 1:
        registry.goodbye(name)
    elif change == 2:
        registry.change_role(RoleChange(name, "p", source.choice(["prefill", "decode"]), source.random() < 0.5))
    elif change == 3:
        registry.hello(replace(registry.workers[name].hello, draining=source.random() < 0.5), float(turn))
    elif change == 4:
        registry.heartbeat(Heartbeat(name, "p", 1, 1, source.randrange(64), 0, {}, others={"taken": 2, "proxies": 1}))
    elif change == 5:
        registry.remove([registry.workers[name]])
    elif change == 6:
        registry.workers[name].in_flight = source.randrange(8)
    elif change == 7:
        share, counts = FairShare("ab"[turn % 2]), registry.workers[name].seat_counts
        registry.workers[name].seat(share, max(source.choice([1, 3, -1, -2]), -counts.held.get(share.caller, 0)))
    else:
        share, counts = FairShare("ab"[turn % 2]), registry.workers[name].prompt_counts
        change = max(source.choice([1, -1]), -counts.held.get(share.caller, 0))
        registry.workers[name].owe(share, source.randrange(8), change)
