# SPDX-License-Identifier: Apache-2.0
"""Self-test requests of the proxy: they prove that every pair works, and no client sees or pays for them."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live_proxy import LiveProxy, collect, submitted, until
from scripted_speech import speaks
from scripted_worker import ScriptedWorker, proper, silent

from pontil.runtime.accounting.ledger import SELF_TEST
from pontil.runtime.proxy import self_test
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.runs.entry import runs_of
from pontil.runtime.wire.messages import Failed, Message, NodeTask, RoleChange, Submit, Tokens

PASSED = {"route": "prefill:0>decode:0", "state": "PASSED", "bytes": 3_000_000, "seconds": 0.0}
Results = Sequence[dict[str, Any]]


def pulling(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Answer as a decode worker that states what it pulled."""
    for frame in proper(worker, submit):
        assert isinstance(frame, Tokens)
        first = frame.index == 0 and submit.phase == "decode"
        yield replace(frame, pulled_bytes=3_000_000, pulled_seconds=0.0) if first else frame


def computing(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Answer as a decode worker that received no blocks and computed the prompt itself."""
    for frame in pulling(worker, submit):
        assert isinstance(frame, Tokens)
        yield replace(frame, pulled_bytes=0, pull_error="no bytes came for 5 s") if frame.pulled_bytes else frame


async def results_of(live_proxy: LiveProxy, steps: list[str] | None = None) -> Results:
    """Run the self-test and return what the supervisor is told."""
    answer: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
    live_proxy.proxy.self_test.begin(answer.set_result, (steps if steps is not None else []).append)
    return await answer


async def beaten(live_proxy: LiveProxy) -> None:
    """Wait until every worker has stated its count after everything that it sent."""
    books = live_proxy.proxy.ledger.books
    await until(lambda: all(books[one.incarnation].stated == one.generated for one in live_proxy.workers))


def test_a_pair_that_moves_blocks_passes_and_nobody_sees_or_pays_it(
    play: Callable[..., None], tmp_path: Path
) -> None:  # G2, D21, A11
    usage = tmp_path / "usage.db"

    async def scene(live_proxy: LiveProxy) -> None:
        prefill, _ = await live_proxy.worker("prefill:0"), await live_proxy.worker("decode:0", script=pulling)
        assert not live_proxy.proxy.ready and live_proxy.proxy.self_test.shown[0]["state"] == "UNTESTED"
        steps: list[str] = []
        assert await results_of(live_proxy, steps) == [{name: PASSED[name] for name in ("route", "bytes", "seconds")}]
        assert live_proxy.proxy.ready and live_proxy.proxy.self_test.shown == [PASSED]
        assert steps == ["self-test 1 of 1: prefill:0>decode:0"]
        assert len((await submitted(prefill)).prompt) == self_test.PROMPT_TOKENS
        await beaten(live_proxy)
        ledger = live_proxy.proxy.ledger
        assert (ledger.imbalance, ledger.totals.requests, ledger.totals.generated) == (0, 0, 0)
        assert ledger.totals.discarded[SELF_TEST] == 2 and live_proxy.proxy.idle
        assert (
            live_proxy.value("pontil_generation_tokens_total") == live_proxy.value("pontil_num_requests_running") == 0
        )
        assert live_proxy.value("pontil_time_to_first_token_seconds_count") == 0
        assert live_proxy.value("pontil_inter_token_latency_seconds_count") == 0
        assert 'finish_reason="' not in live_proxy.proxy.metrics.render().decode()
        await collect(live_proxy.submit([5, 6], SamplingParams(max_tokens=3, seed=1), name="mine"))

    play(scene, self_test=True, usage_log=str(usage))
    with closing(sqlite3.connect(usage)) as database:
        assert database.execute("SELECT name FROM requests").fetchall() == [("mine",)]
        assert database.execute("SELECT sum(booked), sum(late) FROM workers").fetchone() == (3, 2)


@pytest.mark.parametrize(("script", "why"), [(proper, ""), (computing, " (no bytes came for 5 s)")])
def test_a_pair_of_which_nothing_moves_fails(play: Callable[..., None], script: Any, why: str) -> None:  # G2
    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("prefill:0")
        await live_proxy.worker("decode:0", script=script)
        (result,) = await results_of(live_proxy)
        assert result["error"] == "no KV block moved from prefill:0 to decode:0" + why
        assert not live_proxy.proxy.ready and live_proxy.proxy.self_test.shown[0]["state"] == "FAILED"

    play(scene, self_test=True)


def test_a_worker_that_fails_is_named_and_no_other_is_asked(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("mixed:0", script=refusing)
        await live_proxy.worker("mixed:1")
        (result,) = await results_of(live_proxy)
        assert result["error"] == "mixed:0 does not serve: no room"
        assert live_proxy.proxy.idle and live_proxy.value("pontil_failovers_total", cause="failed") == 0
        await beaten(live_proxy)
        assert live_proxy.proxy.ledger.imbalance == 0

    play(scene, self_test=True)


def refusing(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    yield Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "no room")


def test_workers_without_a_pair_are_tested_alone_and_new_ones_when_they_come(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        assert await results_of(live_proxy) == [] and not live_proxy.proxy.ready
        await live_proxy.worker("prefill:0")
        await until(lambda: live_proxy.proxy.ready)
        assert [row["route"] for row in live_proxy.proxy.self_test.shown] == ["prefill:0"]
        await live_proxy.worker("decode:0", script=pulling)
        await until(lambda: live_proxy.proxy.self_test.shown == [PASSED])
        second = await live_proxy.worker("prefill:1")
        await until(lambda: [row["state"] for row in live_proxy.proxy.self_test.shown] == ["PASSED", "PASSED"])
        decode = live_proxy.workers[1]
        # A scripted worker hears in a thread of its own, maybe after the other one has answered.
        await until(lambda: second.submits.qsize() == 1)
        assert decode.submits.qsize() == 2, "pairs that were tested are left alone"

    play(scene, self_test=True)


def test_a_worker_that_leaves_meanwhile_has_no_result(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        answer = asyncio.ensure_future(results_of(live_proxy))
        await submitted(worker)
        await asyncio.to_thread(worker.fall_silent, live_proxy.proxy.registry)
        assert await answer == [] and live_proxy.proxy.self_test.shown == []

    play(scene, self_test=True)


def test_a_route_that_failed_is_tried_again(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "RETRY_SECONDS", 0.05)

    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=refusing)
        assert "error" in (await results_of(live_proxy))[0]
        worker.script = proper
        await until(lambda: live_proxy.proxy.ready)
        assert live_proxy.proxy.self_test.shown == [{"route": "mixed:0", "state": "PASSED", "bytes": 0}]

    play(scene, self_test=True)


def test_a_short_context_gets_a_short_prompt(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", max_model_len=8)
        await results_of(live_proxy)
        submit = await submitted(worker)
        assert len(submit.prompt) == 8 - self_test.PARAMS.max_tokens and len(submit.cache_salt) == 16

    play(scene, self_test=True)


def test_a_worker_that_takes_another_role_is_tested_in_its_new_pairs(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("prefill:0", script=pulling)
        await live_proxy.worker("prefill:1", script=pulling)
        await results_of(live_proxy)
        first.say(RoleChange(first.incarnation, first.proxy, "decode", False))
        pair = {"route": "prefill:1>prefill:0", "state": "PASSED"}
        await until(lambda: [row for row in live_proxy.proxy.self_test.shown if row.items() >= pair.items()])
        assert len(live_proxy.proxy.self_test.shown) == 1

    play(scene, self_test=True)


async def nodes(live_proxy: LiveProxy, **computers: Any) -> None:
    """Start a worker of each node."""
    for name, computer in computers.items():
        identity = {"model": name, "model_fingerprint": name, "kv_fingerprint": ""}
        await live_proxy.worker(f"{name}:0", role="node", node=name, computer=computer, **identity)


def speechless(worker: ScriptedWorker, task: NodeTask) -> Iterator[Message]:
    yield Failed(worker.incarnation, worker.proxy, task.request_id, task.attempt, "out of breath")


def test_a_model_that_speaks_is_asked_for_sound_and_nobody_sees_or_pays_it(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("mixed:0", node="llm")
        await nodes(live_proxy, speaker=speaks, recognizer=speechless)
        steps: list[str] = []
        found = await results_of(live_proxy, steps)
        assert found == [{"route": "mixed:0", "bytes": 0}, {"route": "sound", "bytes": 0}]
        assert steps == ["self-test 1 of 2: mixed:0", "self-test 2 of 2: sound"] and live_proxy.proxy.ready
        await beaten(live_proxy)
        proxy = live_proxy.proxy
        assert proxy.idle and not runs_of(proxy).conductor.runs
        assert (proxy.ledger.imbalance, proxy.ledger.totals.requests) == (0, 0)
        assert live_proxy.value("pontil_audio_seconds_total") == live_proxy.value("pontil_generation_tokens_total") == 0

    play(scene, self_test=True, graph="speech-demo")


def test_a_model_that_is_to_speak_and_cannot_is_not_ready(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("mixed:0", node="llm")
        await nodes(live_proxy, speaker=speechless)
        told = (await results_of(live_proxy))[-1]
        assert told["route"] == "sound" and told["error"].startswith("an answer in sound fails: out of breath")
        assert live_proxy.proxy.readiness.objection == "the self-test has not passed yet"

    play(scene, self_test=True, graph="speech-demo", max_attempts=1)


def test_a_server_is_ready_when_every_stage_has_a_worker(play: Callable[..., None]) -> None:  # D21
    async def scene(live_proxy: LiveProxy) -> None:
        def objection() -> str | None:
            return live_proxy.proxy.readiness.objection

        assert objection() == "no worker is ready yet"
        await live_proxy.worker("mixed:0", node="llm")
        await until(lambda: "stages recognizer, speaker is" in str(objection()))
        await nodes(live_proxy, speaker=speaks)
        says = "no worker of the stage recognizer is ready: requests that need it are refused, others are answered"
        await until(lambda: objection() == says)
        await nodes(live_proxy, recognizer=speaks)
        await until(lambda: objection() is None)

    play(scene, graph="speech-demo")


def test_an_optional_stage_is_missed_where_it_has_a_process(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        readiness, rows = live_proxy.proxy.readiness, live_proxy.proxy.registry.processes
        await live_proxy.worker("mixed:0", node="thinker")
        await until(lambda: "stages talker, code2wav is" in str(readiness.objection))
        row = {"name": "encoder:0", "role": "node", "pid": 7, "state": "STARTING", "device": "cpu", "node": "encoder"}
        rows.take([row])
        assert "encoder" in str(readiness.objection)
        rows.take([row | {"name": "encode:0", "node": "thinker"}])
        assert "encoder" not in str(readiness.objection)

    play(scene, graph="qwen3-omni")
