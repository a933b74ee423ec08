# SPDX-License-Identifier: Apache-2.0
"""Requests behind a lease that is on its way to another process: they wait for it as long as that pays."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from leasing_worker import LeasingWorker, leasing, leasing_worker
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE, eventually, silent

from pontil.runtime.tokenizer.tokenizer import Tokenizer

IDS = [40 + number % 50 for number in range(40)]
BEHIND, OTHERS = [*IDS, 7], [9, *IDS]
# Seconds of a token in which nobody waits for the end of a wait, and in which it comes soon.
LONG, SHORT = 10.0, 0.02


@pytest.fixture
def made(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db"), failover_timeout=600.0) as served:
        yield served


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def holding(served: ScriptedSite, *names: str, seconds: float | None = LONG) -> tuple[LeasingWorker, ...]:
    """Return workers of these names, the one that holds a lease first. A token takes so many seconds."""
    served.proxy.dispatcher.waits.token_seconds = lambda group: seconds
    workers = [leasing_worker(served, name) for name in names]
    answer = served.ask("POST", "/v1/prefixes", {"prompt": IDS, "ttl": 600})
    assert answer.status == 200, answer.body
    workers.sort(key=lambda worker: not worker.leases)
    assert [len(worker.leases) for worker in workers] == [1] + [0] * (len(workers) - 1)
    workers[0].submits.get()
    return tuple(workers)


def next_process(served: ScriptedSite, name: str, *, remembers: bool = True, **hello: Any) -> LeasingWorker:
    role = name.split(":")[0]
    worker = LeasingWorker(served.endpoint, name, served.tokenizer, (5,), role=role, **hello).ready(1000)
    worker.remembers = remembers
    served.workers.append(worker)
    worker.start()
    return worker


def ask(served: ScriptedSite, prompt: list[int], **fields: Any) -> HttpAnswer:
    return served.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 2} | fields)


def parked(served: ScriptedSite) -> int:
    admission = served.proxy.admissions.generating
    return len(admission.queue.parked) + len(admission.background.parked)


def waiting(served: ScriptedSite, pool: ThreadPoolExecutor, **fields: Any) -> Future[HttpAnswer]:
    """Ask behind the lease, and see that this waits while others of the same caller are served."""
    asked = pool.submit(ask, served, BEHIND, **fields)
    eventually(lambda: parked(served) == 1, "the wait for the lease")
    assert ask(served, OTHERS).status == 200 and parked(served) == 1 and not asked.done()
    return asked


@pytest.mark.parametrize("fields", [{}, {"service_tier": "flex"}], ids=["standard", "batch"])
def test_a_request_waits_for_the_next_process_of_a_leases_worker(
    made: ScriptedSite, pool: ThreadPoolExecutor, fields: dict[str, str]
) -> None:
    holder, other = holding(made, "mixed:0", "mixed:1")
    holder.fall_silent(made.proxy.registry)
    asked = waiting(made, pool, **fields)
    assert other.submits.get().prompt == OTHERS
    successor = next_process(made, holder.name)
    assert asked.result(DEADLINE).status == 200
    assert successor.submits.get().prompt == BEHIND and other.submits.empty() and not parked(made)


def test_a_request_waits_for_a_lease_that_another_proxy_bills(made: ScriptedSite, pool: ThreadPoolExecutor) -> None:
    holder, other = holding(made, "mixed:0", "mixed:1")
    ((name, kept),) = holder.leases.items()
    holder.say(replace(holder.now(kept), proxy="elsewhere"))
    eventually(lambda: made.proxy.leases.views[name].proxy == "elsewhere", "the other proxy's lease")
    holder.fall_silent(made.proxy.registry)
    asked = waiting(made, pool)
    successor = next_process(made, holder.name)
    assert asked.result(DEADLINE).status == 200
    assert successor.submits.get().prompt == BEHIND and other.submits.get().prompt == OTHERS


def test_a_request_that_its_worker_did_not_answer_waits_for_the_next_process(
    made: ScriptedSite, pool: ThreadPoolExecutor
) -> None:
    holder, other = holding(made, "mixed:0", "mixed:1")
    holder.script = silent
    asked = pool.submit(ask, made, BEHIND)
    assert holder.submits.get(timeout=DEADLINE).prompt == BEHIND
    holder.fall_silent(made.proxy.registry)
    eventually(lambda: made.proxy.dispatcher.stranded, "the broken attempt")
    assert ask(made, OTHERS).status == 200 and not asked.done()
    successor = next_process(made, holder.name)
    assert asked.result(DEADLINE).status == 200
    assert successor.submits.get().prompt == BEHIND and other.submits.get().prompt == OTHERS
    assert other.submits.empty()


def test_a_request_waits_no_longer_than_computing_takes(made: ScriptedSite, pool: ThreadPoolExecutor) -> None:
    """It goes to whoever can begin it then, and waits no second time."""
    holder, other = holding(made, "mixed:0", "mixed:1", seconds=SHORT)
    holder.fall_silent(made.proxy.registry)
    other.script = silent
    asked = pool.submit(ask, made, BEHIND)
    assert other.submits.get(timeout=DEADLINE).prompt == BEHIND
    (request,) = made.proxy.requests.values()
    assert request.attempts.lease_awaited_at is not None
    assert request.attempts.sent - request.attempts.lease_awaited_at >= 32 * SHORT
    other.script = leasing
    other.fall_silent(made.proxy.registry)
    assert next_process(made, other.name).submits.get(timeout=DEADLINE).prompt == BEHIND
    assert asked.result(DEADLINE).status == 200


def test_a_request_waits_for_no_lease_that_is_refunded(made: ScriptedSite, pool: ThreadPoolExecutor) -> None:
    holder, _ = holding(made, "mixed:0", "mixed:1")
    holder.fall_silent(made.proxy.registry)
    asked = waiting(made, pool)
    next_process(made, holder.name, remembers=False)
    assert asked.result(DEADLINE).status == 200 and not parked(made)


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_nobody_waits_where_computing_takes_no_time_that_is_known(made: ScriptedSite, seconds: float | None) -> None:
    holder, other = holding(made, "mixed:0", "mixed:1", seconds=seconds)
    holder.fall_silent(made.proxy.registry)
    assert ask(made, BEHIND).status == 200
    assert other.submits.get().prompt == BEHIND


def test_nobody_waits_for_memory_that_ended_with_its_worker(made: ScriptedSite) -> None:
    holder, other = holding(made, "mixed:0", "mixed:1")
    known = made.proxy.registry.workers[holder.incarnation]
    known.hello = replace(known.hello, device="cuda:0")
    holder.fall_silent(made.proxy.registry)
    assert ask(made, BEHIND).status == 200
    assert other.submits.get().prompt == BEHIND


def test_a_request_waits_for_no_lease_of_another_release(made: ScriptedSite) -> None:
    (holder,) = holding(made, "mixed:0")
    newer = next_process(made, "mixed:1", revision="next")
    holder.fall_silent(made.proxy.registry)
    assert ask(made, BEHIND).status == 200
    assert newer.submits.get().prompt == BEHIND


def test_a_request_waits_while_a_lease_moves_from_a_worker_that_drains(
    made: ScriptedSite, pool: ThreadPoolExecutor
) -> None:
    holder, *others = holding(made, "mixed:0", "mixed:1", "mixed:2")
    for other in others:
        other.script = silent
    holder.drain()
    eventually(lambda: any(one.submits.qsize() for one in others), "the move's beginning")
    (target,) = [one for one in others if one.submits.qsize()]
    move = target.submits.get()
    for other in others:
        other.script = leasing
    asked = waiting(made, pool)
    for other in others:
        while not other.submits.empty():
            assert other.submits.get().prompt == OTHERS
    target.say(target.grant(move))
    assert asked.result(DEADLINE).status == 200
    assert target.submits.get().prompt == BEHIND


def test_a_request_waits_for_a_prefill_worker(made: ScriptedSite, pool: ThreadPoolExecutor) -> None:
    holder, *_ = holding(made, "prefill:0", "prefill:1", "decode:0")
    holder.fall_silent(made.proxy.registry)
    asked = waiting(made, pool)
    successor = next_process(made, holder.name)
    assert asked.result(DEADLINE).status == 200
    assert (submit := successor.submits.get()).prompt == BEHIND and submit.phase == "prefill"


def test_who_leaves_waits_no_longer(made: ScriptedSite) -> None:
    holder, _ = holding(made, "mixed:0", "mixed:1")
    holder.fall_silent(made.proxy.registry)
    with closing(made.connect()) as connection:
        body = json.dumps({"prompt": BEHIND, "max_tokens": 2})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        eventually(lambda: parked(made) == 1, "the wait for the lease")
    eventually(lambda: not parked(made) and not made.proxy.requests, "the end of the request")
    queue = made.proxy.queue
    assert not queue.places and not len(queue)


def test_a_shutdown_ends_the_wait(made: ScriptedSite, pool: ThreadPoolExecutor) -> None:
    holder, _ = holding(made, "mixed:0", "mixed:1")
    holder.fall_silent(made.proxy.registry)
    asked = waiting(made, pool)
    made.loop.call_soon_threadsafe(made.proxy.abandon)
    assert asked.result(DEADLINE).status == 503 and not parked(made)


def test_deadlines_leave_time_to_compute(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, first_byte_timeout=2.0) as served:
        holder, other = holding(served, "mixed:0", "mixed:1")
        holder.fall_silent(served.proxy.registry)
        assert ask(served, BEHIND).status == 200
        assert other.submits.get().prompt == BEHIND
