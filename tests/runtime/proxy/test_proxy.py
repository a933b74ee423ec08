# SPDX-License-Identifier: Apache-2.0
"""The router with scripted workers over real sockets."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from event_reader import take
from live_proxy import TEXT, LiveProxy, collect, submitted, until
from open_resources import nothing_left
from proxy_configs import bare_config
from scripted_worker import DEADLINE, ScriptedWorker, silent

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.answer import Delta, Finished
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import SCHEMA, Failed, Goodbye, Heartbeat, Hello, Submit, Tokens

PARAMS = SamplingParams(max_tokens=20, seed=1)


def test_the_same_answer_from_a_pair_and_from_one(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        mixed = await live_proxy.worker("mixed:0")
        alone = await collect(live_proxy.submit([5, 6], PARAMS))
        live_proxy.proxy.registry.goodbye(mixed.incarnation)
        await live_proxy.worker("prefill:0")
        await live_proxy.worker("decode:0")
        pair = await collect(live_proxy.submit([5, 6], PARAMS))
        assert alone[:2] == pair[:2] and alone[0] == TEXT
        count = len(live_proxy.tokenizer.encode(TEXT, False)) + 1
        assert alone[2] == Finished("stop", Usage(2, count, 0), "mixed:0")
        assert pair[2] == Finished("stop", Usage(2, count, 0), "prefill:0>decode:0")
        assert live_proxy.proxy.idle and live_proxy.value("pontil_request_success_total", finished_reason="stop") == 2
        assert live_proxy.value("pontil_generation_tokens_total") == 2 * count
        assert live_proxy.value("pontil_counts_disputed_total") == 0
        assert live_proxy.value("pontil_time_to_first_token_seconds_count") == 2

    play(scene)


def test_a_prefill_that_ends_the_request_frees_decode(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        prefill, decode = await live_proxy.worker("prefill:0"), await live_proxy.worker("decode:0", script=silent)
        _, ids, end = await collect(live_proxy.submit([5], SamplingParams(max_tokens=1, seed=1)))
        assert end.reason == "length" and len(ids) == end.usage.completion_tokens == 1
        cancel = await asyncio.to_thread(decode.cancels.get, timeout=DEADLINE)
        assert cancel.request_id == (await submitted(decode)).request_id
        assert prefill.cancels.empty()

    play(scene)


@pytest.mark.parametrize("begun", [False, True])
def test_a_worker_that_goes_silent_is_an_error_not_a_hang(play: Callable[..., None], begun: bool) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(worker)
        if begun:
            worker.say(worker.tokens(submit, 0, [10]))
            assert isinstance(await take(stream), Delta)
        await asyncio.to_thread(worker.fall_silent, live_proxy.proxy.registry)
        with pytest.raises(Unavailable, match="mixed:0 went silent"):
            await collect(stream)
        assert live_proxy.proxy.idle and not live_proxy.proxy.ready

    play(scene, max_attempts=1)


@pytest.mark.parametrize("whole", [False, True])
def test_tokens_of_an_answer_that_fails_are_billed_where_the_reader_has_them(
    play: Callable[..., None], whole: bool
) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker, ledger = await live_proxy.worker("mixed:0", script=silent), live_proxy.proxy.ledger
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(worker)
        reading = asyncio.ensure_future(stream.all() if whole else collect(stream))
        worker.say(worker.tokens(submit, 0, [10]))
        await until(lambda: stream.request.times.begun)
        await asyncio.to_thread(worker.fall_silent, live_proxy.proxy.registry)
        with pytest.raises(Unavailable, match="mixed:0 went silent"):
            await reading
        sums = ledger.totals
        assert (sums.prompt_tokens, sums.completion_tokens, sums.delivered) == ((0, 0, 0) if whole else (1, 1, 1))
        assert (sums.generated, sums.discarded["unread"], ledger.imbalance) == (1, int(whole), 0)

    play(scene, max_attempts=1)


def test_the_table_ends_the_requests_of_a_dead_worker(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        row = {"name": "mixed:0", "role": "mixed", "pid": worker.pid, "state": "ready", "device": "cpu"}
        live_proxy.proxy.take_table([row])
        stream = live_proxy.submit([5], PARAMS)
        live_proxy.proxy.take_table([row | {"state": "exited", "pid": None}])
        with pytest.raises(Unavailable, match="mixed:0 died"):
            await take(stream)
        with pytest.raises(Unavailable, match="no worker"):
            live_proxy.submit([5], PARAMS)

    play(scene, max_attempts=1)


def test_cancel_reaches_every_worker_of_the_request(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        workers = [await live_proxy.worker(name, script=silent) for name in ("prefill:0", "decode:0")]
        stream = live_proxy.submit([5], PARAMS, name="mine")
        stream.cancel()
        stream.cancel()
        for worker in workers:
            cancel = await asyncio.to_thread(worker.cancels.get, timeout=DEADLINE)
            assert cancel.request_id.startswith("mine-")
        assert live_proxy.proxy.idle and live_proxy.value("pontil_num_requests_running") == 0
        assert live_proxy.value("pontil_request_success_total", finished_reason="abort") == 1

    play(scene)


@pytest.mark.parametrize(("status", "kind"), [(400, RequestError), (503, Unavailable), (12345, Unavailable)])
def test_a_workers_refusal_is_the_answer(play: Callable[..., None], status: int, kind: type[Exception]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(worker)
        worker.say(Failed(worker.incarnation, worker.proxy, submit.request_id, 0, "no room", status))
        with pytest.raises(kind, match="no room"):
            await take(stream)

    play(scene, max_attempts=1)


def test_stale_and_hostile_frames_change_nothing(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG, "pontil.proxy")

    async def scene(live_proxy: LiveProxy) -> None:
        worker, other = (
            await live_proxy.worker("mixed:0", script=silent),
            await live_proxy.worker("mixed:1", script=silent),
        )
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(worker)
        good = worker.tokens(submit, 0, [10], generated_tokens=1, finish_reason="stop")
        name = submit.request_id
        for bad in (
            Tokens(worker.incarnation, "another proxy", name, 0, 0, [9]),
            Tokens(worker.incarnation, worker.proxy, name, 7, 0, [9]),
            Tokens(worker.incarnation, worker.proxy, "nobody's", 0, 0, [9]),
            Tokens(worker.incarnation, worker.proxy, name, 0, -1, [9]),
            Tokens(worker.incarnation, worker.proxy, name, 0, 0, [-9]),
            Tokens(worker.incarnation, worker.proxy, name, 0, 0, [9], choice=4),
            Submit(worker.incarnation, worker.proxy, name, 0, [1], {}),
        ):
            worker.say(bad)
        other.say(Tokens(other.incarnation, other.proxy, name, 0, 0, [9]))
        await until(lambda: live_proxy.value("pontil_frames_dropped_total", reason="stale") == 5)
        worker.say(good)
        assert (await collect(stream))[1] == [10]
        assert live_proxy.value("pontil_frames_dropped_total", reason="malformed") == 3
        said = f"dropped a Tokens from {worker.incarnation}: it does not fit its request"
        assert caplog.messages.count(said) == 3

    play(scene)


def test_lost_tokens_fail_the_request(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        worker.say(worker.tokens(await submitted(worker), 3, [10]))
        with pytest.raises(Unavailable, match="lost"):
            await take(stream)
        assert live_proxy.value("pontil_frames_dropped_total", reason="broken") == 1

    play(scene, max_attempts=1)


def test_the_first_token_has_a_deadline(play: Callable[..., None]) -> None:  # C14
    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("mixed:0", script=silent)
        with pytest.raises(Unavailable, match="first token did not come within 0.3 s"):
            await take(live_proxy.submit([5], PARAMS))

    play(scene, first_byte_timeout=0.3)


def test_overload_and_draining_are_refused_at_once(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("mixed:0", script=silent, max_num_seqs=1)
        for _ in range(4):
            live_proxy.submit([5], PARAMS)
        with pytest.raises(Unavailable, match="in flight"):
            live_proxy.submit([5], PARAMS)
        live_proxy.proxy.drain()
        assert not live_proxy.proxy.ready
        with pytest.raises(Unavailable, match="shutting down"):
            live_proxy.submit([5], PARAMS)

    play(scene)


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        ({"kv_fingerprint": "other"}, "KV layout other"),
        # Of another version, and without required fields of this version.
        ({"schema": SCHEMA + 1, "block_size": None, "peer_endpoint": None}, f"version {SCHEMA + 1} of the protocol"),
    ],
)
def test_refusal_of_a_worker_that_does_not_fit(play: Callable[..., None], hello: dict[str, Any], says: str) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("mixed:0")
        stranger = ScriptedWorker(live_proxy.endpoint, "mixed:1", live_proxy.tokenizer, role="mixed", **hello)
        live_proxy.workers.append(stranger)
        stranger.start(wait=False)
        await until(lambda: stranger.refused)
        assert stranger.refused is not None and says in stranger.refused
        last = live_proxy.proxy.topology()[-1]
        assert (last["name"], last["state"], last["reason"]) == ("mixed:1", "REFUSED", stranger.refused)

    play(scene)


def test_ready_means_that_a_worker_can_be_reached(play: Callable[..., None]) -> None:  # D21
    async def scene(live_proxy: LiveProxy) -> None:
        assert not live_proxy.proxy.ready
        first, second = [await live_proxy.worker(name) for name in ("prefill:0", "decode:0")]
        assert live_proxy.proxy.ready
        await asyncio.to_thread(first.die)
        assert live_proxy.proxy.ready
        await asyncio.to_thread(second.die)
        await until(lambda: not live_proxy.proxy.ready)
        # Their time to live is not over: clients are told the truth before it is.
        assert {first.incarnation, second.incarnation} <= live_proxy.proxy.registry.workers.keys()

    play(scene, worker_ttl=2 * DEADLINE)


def test_heartbeats_feed_the_metrics_by_difference(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("decode:0")
        for bytes_moved, handoffs in ((100, 1), (100, 1), (250, 2)):
            counters = {"kv_transfer_bytes": bytes_moved, "handoffs_complete": handoffs, "handoffs_odd": 7}
            counters |= {"prefix_cache_queries": 9, "prefix_cache_hits": 4, "preemptions": 2}
            worker.counters = counters
            worker.say(Heartbeat(worker.incarnation, worker.proxy, 0, 0, 9, 1, counters))
        await until(lambda: live_proxy.value("pontil_kv_transfer_bytes_total") == 250)
        series = ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions")
        assert [live_proxy.value(f"pontil_{name}_total") for name in series] == [9, 4, 2]
        assert live_proxy.value("pontil_handoffs_total", result="complete") == 2
        text = live_proxy.proxy.metrics.render().decode()
        assert 'pontil_handoffs_total{result="failed"} 0.0' in text and "odd" not in text

    play(scene)


def test_goodbye_stops_new_requests_and_lets_the_others_end(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(worker)
        worker.say(Goodbye(worker.incarnation, worker.proxy))
        await until(lambda: not live_proxy.proxy.ready)
        worker.say(worker.tokens(submit, 0, [10], finish_reason="stop", generated_tokens=1))
        assert (await collect(stream))[2].reason == "stop"

    play(scene)


def test_a_proxy_that_was_stopped_blames_nobody(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The messages that arrived meanwhile are read before any worker is given up."""
    now = 100.0
    proxy = Proxy(bare_config(worker_ttl=5.0), tokenizer, lambda: now)
    proxy.registry.hello(Hello("i", SCHEMA, "mixed:0", "mixed", 1, "cpu", "m", "m", "k", "e", 16, 9, 4, 99, 9), now)
    now = 130.0
    proxy.tick()
    assert proxy.registry.workers
    now = 130.3
    proxy.tick()
    assert not proxy.registry.workers
    proxy.link.context.term()


def test_closing_leaves_no_thread_and_no_descriptor(play: Callable[..., None], tmp_path: Path) -> None:  # D5
    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("mixed:0")
        await collect(live_proxy.submit([5], PARAMS))

    play(scene, usage_log=str(tmp_path / "first"))
    with nothing_left():
        play(scene, usage_log=str(tmp_path / "second"))


async def beaten(live_proxy: LiveProxy) -> None:
    """Wait until every worker has stated its count after everything that it sent."""
    books = live_proxy.proxy.ledger.books
    await until(
        lambda: (
            all(books[worker.incarnation].stated == worker.generated for worker in live_proxy.workers)
            and all(book.stated == book.heard_then == book.heard for book in books.values())
        )
    )


def test_the_ledger_closes_every_request_on_every_path(play: Callable[..., None]) -> None:  # A11
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        ledger = live_proxy.proxy.ledger
        streams = [live_proxy.submit([5], PARAMS) for _ in range(4)]
        finished, cancelled, failed, broken = [await submitted(worker) for _ in streams]
        assert len(ledger.entries) == 4
        worker.say(worker.tokens(finished, 0, [10, 2], finish_reason="stop", generated_tokens=2))
        for submit in (cancelled, failed, broken):
            worker.say(worker.tokens(submit, 0, [10]))
        await until(lambda: all(entry.delivered for entry in ledger.entries.values()))
        streams[1].cancel()
        worker.say(worker.tokens(cancelled, 1, [11]))
        worker.say(Failed(worker.incarnation, worker.proxy, failed.request_id, 0, "no room", 503))
        worker.say(worker.tokens(broken, 3, [12]))
        await beaten(live_proxy)
        assert not ledger.entries and ledger.totals.requests == 4
        assert (ledger.totals.generated, ledger.totals.delivered, ledger.totals.completion_tokens) == (6, 5, 5)
        assert ledger.totals.discarded["broken"] == ledger.totals.discarded["late"] == 1
        await until(lambda: live_proxy.value("pontil_discarded_tokens", reason="late") == 1)
        assert ledger.imbalance == 0 == live_proxy.value("pontil_ledger_imbalance")

    play(scene, max_attempts=1)


def test_the_ledger_closes_what_a_dying_worker_or_proxy_leaves_behind(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        live_proxy.submit([5], PARAMS)
        live_proxy.proxy.abandon()
        assert live_proxy.proxy.ledger.totals.requests == 1 and not live_proxy.proxy.ledger.entries
        live_proxy.proxy.dispatcher.send = lambda message: False
        with pytest.raises(Unavailable, match="no worker came back within 0.3 s"):
            await take(live_proxy.submit([5], PARAMS))
        row = {"name": "mixed:0", "role": "mixed", "pid": worker.pid, "state": "ready", "device": "cpu"}
        live_proxy.proxy.take_table([row])
        live_proxy.proxy.dispatcher.send = lambda message: True
        live_proxy.submit([5], PARAMS)
        live_proxy.proxy.take_table([row | {"state": "exited", "pid": None}])
        assert live_proxy.proxy.ledger.totals.requests == 3 and live_proxy.proxy.ledger.imbalance == 0

    play(scene, max_attempts=1, failover_timeout=0.3)


def test_counts_that_do_not_add_up_show_in_the_metrics(play: Callable[..., None]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        worker.say(worker.tokens(await submitted(worker), 0, [10], finish_reason="stop", generated_tokens=1))
        assert (await collect(stream))[2].usage.completion_tokens == 1
        await beaten(live_proxy)
        assert live_proxy.proxy.ledger.imbalance == 0
        worker.counters = {"generated_tokens": 6}
        await until(lambda: live_proxy.value("pontil_ledger_imbalance") == 5)

    play(scene)


def test_a_choice_that_ended_is_billed_nothing_more(play: Callable[..., None]) -> None:
    """A worker that goes on after the end of a choice, and states no count, is not billed for it."""

    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], SamplingParams(max_tokens=9, seed=1, n=2))
        submit = await submitted(worker)
        worker.say(worker.tokens(submit, 0, [10], finish_reason="stop"))
        worker.say(worker.tokens(submit, 1, [11, 12]))
        worker.say(worker.tokens(submit, 0, [13], choice=1, finish_reason="stop"))
        assert (await collect(stream))[2].usage.completion_tokens == 2
        assert live_proxy.proxy.ledger.totals.discarded["after_end"] == 2 and live_proxy.proxy.ledger.imbalance == 0

    play(scene)
