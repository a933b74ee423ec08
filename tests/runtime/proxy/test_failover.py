# SPDX-License-Identifier: Apache-2.0
"""The exit of a worker is only a pause: another attempt continues after the delivered tokens, and the books balance."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from event_reader import take
from live_proxy import TEXT, LiveProxy, balanced, collect, lost, row, submitted, until
from scripted_worker import ScriptedWorker, proper, silent

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.requests.answer import Delta
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Cancel, Failed, Message, Submit, Tokens

PARAMS = SamplingParams(max_tokens=60, seed=1)
Play = Callable[..., None]


def first_only(count: int) -> Callable[[ScriptedWorker, Submit], Iterator[Message]]:
    """Answer properly, but send nothing after the first `count` frames."""

    def script(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        frames = proper(worker, submit)
        return (frame for _, frame in zip(range(count), frames, strict=False))

    return script


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("spare", ["decode:1", "prefill:0", "mixed:0"])
def test_a_stream_goes_on_elsewhere(play: Play, spare: str, count: int) -> None:
    """`spare` serves after decode:0 died, alone or with prefill:0."""

    async def scene(live_proxy: LiveProxy) -> None:
        await live_proxy.worker("mixed:9")
        whole = await collect(live_proxy.submit([5, 6], PARAMS))
        live_proxy.proxy.registry.goodbye(live_proxy.workers[0].incarnation)
        prefill = await live_proxy.worker("prefill:0")
        dying = await live_proxy.worker("decode:0", script=first_only(count))
        stream = live_proxy.submit([5, 6], PARAMS)
        await until(lambda: len(stream.request.answers[0].ids) >= max(1, count))
        if spare == "mixed:0":
            live_proxy.proxy.registry.goodbye(prefill.incarnation)
        if spare != "prefill:0":
            await live_proxy.worker(spare)
        lost(live_proxy, dying)
        assert await collect(stream) == (*whole[:2], stream.request.mailbox.end) and whole[0] == TEXT
        assert stream.request.attempts.number == 1 and stream.usage == whole[2].usage
        assert live_proxy.value("pontil_failovers_total", cause="died") == 1
        balanced(live_proxy)

    play(scene)


@pytest.mark.parametrize("keys", ["01" * 32, None])
def test_every_transfer_has_a_secret_of_its_own_where_there_are_keys(play: Play, keys: str | None) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        workers = [await live_proxy.worker(name) for name in ("prefill:0", "decode:0")]
        minted: list[str | None] = []
        for _ in range(2):
            await collect(live_proxy.submit([5, 6], PARAMS))
            told = {(await submitted(worker)).transfer_secret for worker in workers}
            assert len(told) == 1, "both are told the same"
            minted += told
        assert (
            minted == [None, None]
            if keys is None
            else len(set(minted)) == 2 and all(len(one or "") == 64 for one in minted)
        )

    play(scene, keys=keys)


def test_what_is_delivered_is_told_to_the_next_and_counted_once(play: Play) -> None:  # A5
    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], SamplingParams(max_tokens=9, n=3, seed=1))
        submit = await submitted(first)
        first.say(first.tokens(submit, 0, [10, 11]))
        first.say(first.tokens(submit, 0, [20, 2], choice=1, finish_reason="stop", generated_tokens=2))
        await until(lambda: stream.usage.completion_tokens == 4)
        second = await live_proxy.worker("mixed:1", script=silent)
        lost(live_proxy, first)
        again = await submitted(second)
        assert (again.attempt, again.delivered, again.choices) == (1, [[10, 11], [20, 2], []], [0, 2])
        assert again.sampling == submit.sampling
        first.say(first.tokens(submit, 2, [12]))  # late: sent before it died
        await until(lambda: live_proxy.value("pontil_frames_dropped_total", reason="stale") == 1)
        second.say(second.tokens(again, 2, [12, 2], finish_reason="stop", generated_tokens=2))
        second.say(second.tokens(again, 0, [30, 2], choice=2, finish_reason="stop", generated_tokens=2))
        _, _, end = await collect(stream)
        assert end.usage == Usage(1, 8, 0)
        books = live_proxy.proxy.ledger.books
        assert (books[first.incarnation].heard, books[first.incarnation].late) == (5, 1)
        assert books[second.incarnation].booked == 4
        balanced(live_proxy)

    play(scene)


def test_prompt_logprobs_that_never_came_are_asked_for_again(play: Play) -> None:
    """Decode repeats the first token, but the logprobs of the prompt are lost with prefill."""

    async def scene(live_proxy: LiveProxy) -> None:
        prefill, decode = [await live_proxy.worker(name, script=silent) for name in ("prefill:0", "decode:0")]
        stream = live_proxy.submit([5, 6], SamplingParams(max_tokens=9, seed=1, prompt_logprobs=0))
        submit = await submitted(decode)
        decode.say(decode.tokens(submit, 0, [10, 11]))
        await until(lambda: stream.usage.completion_tokens == 2)
        lost(live_proxy, prefill)
        again = await submitted(decode)
        assert again.phase == "whole" and again.sampling["prompt_logprobs"] == 0
        told = {"prompt_logprobs": [[], [[6, -1.0, 1]]], "generated_tokens": 1, "finish_reason": "stop"}
        decode.say(decode.tokens(again, 2, [2], **told))
        assert (await collect(stream))[1] == [10, 11, 2] and len(stream.request.prompt_logprobs) == 2
        balanced(live_proxy)

    play(scene)


@pytest.mark.parametrize("frames", [0, 1])
def test_a_request_waits_for_a_worker_to_come_back(play: Play, frames: int) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("mixed:0", script=first_only(frames))
        stream = live_proxy.submit([5], PARAMS)
        await submitted(first)
        await until(lambda: len(stream.request.answers[0].ids) == frames)
        lost(live_proxy, first)
        assert live_proxy.proxy.dispatcher.stranded and not live_proxy.proxy.ready
        with pytest.raises(Unavailable, match="no worker is ready"):
            live_proxy.submit([5], PARAMS)
        await live_proxy.worker("mixed:0")
        assert (await collect(stream))[0] == TEXT
        balanced(live_proxy)

    play(scene)


def test_waiting_for_a_worker_has_an_end(play: Play) -> None:  # C14
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        lost(live_proxy, worker)
        with pytest.raises(Unavailable, match="no worker came back within 0.2 s"):
            await take(stream)
        balanced(live_proxy)

    play(scene, failover_timeout=0.2)


def test_nobody_waits_for_a_worker_that_is_given_up(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        lost(live_proxy, worker)
        live_proxy.proxy.take_table([row(worker, "given_up")])
        with pytest.raises(Unavailable, match="none will come back"):
            await take(stream)
        balanced(live_proxy)

    play(scene)


def test_a_client_that_leaves_while_its_request_waits_leaves_nothing(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        lost(live_proxy, worker)
        stream.cancel()
        assert not live_proxy.proxy.dispatcher.stranded
        balanced(live_proxy)

    play(scene)


def test_a_cancel_that_was_refused_is_sent_later_and_before_another_attempt(play: Play) -> None:  # B12, C15
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        dispatcher, send = live_proxy.proxy.dispatcher, live_proxy.proxy.dispatcher.send
        refused, sent = iter([True]), list[Message]()

        def refuses(message: Message) -> bool:
            if isinstance(message, Cancel) and next(refused, False):
                return False
            sent.append(message)
            return send(message)

        dispatcher.send = refuses
        stream, left = (live_proxy.submit([5], PARAMS) for _ in range(2))
        await submitted(worker)
        left.cancel()
        assert len(dispatcher.cancels) == 1
        live_proxy.proxy.router.handlers[Failed](
            Failed(worker.incarnation, live_proxy.proxy.incarnation, stream.request.id, 0, "no room")
        )
        last = [(type(message), getattr(message, "request_id", "")) for message in sent[-3:]]
        assert last == [(Cancel, left.request.id), (Cancel, stream.request.id), (Submit, stream.request.id)]
        refused = iter([True])
        stream.cancel()
        assert len(dispatcher.cancels) == 1
        cancels = [await asyncio.to_thread(worker.cancels.get, timeout=60) for _ in range(3)]
        assert {(one.request_id, one.attempt) for one in cancels} == {
            (left.request.id, 0), (stream.request.id, 0), (stream.request.id, 1),
        }  # fmt: skip
        assert not len(dispatcher.cancels)
        balanced(live_proxy)

    play(scene)


def test_attempts_have_an_end_that_says_what_happened(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        def fails(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
            yield Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "no room", 503)

        workers = [await live_proxy.worker(name, script=fails) for name in ("prefill:0", "decode:0")]
        with pytest.raises(Unavailable, match="no room: attempt 4 of 4"):
            await take(live_proxy.submit([5], PARAMS))
        submits = [await submitted(worker) for worker in workers]
        assert {submit.phase for submit in submits} == {"prefill", "decode"}
        alone = [await submitted(workers[1]), await submitted(workers[0]), await submitted(workers[1])]
        assert [submit.phase for submit in alone] == ["whole"] * 3, "decode alone first, then anybody"
        assert live_proxy.value("pontil_failovers_total", cause="failed") == 3
        balanced(live_proxy)

    play(scene, max_attempts=4)


def test_another_pair_is_tried_before_one_worker_alone(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        workers = [await live_proxy.worker(name, script=silent) for name in ("prefill:0", "decode:0", "decode:1")]
        live_proxy.submit([5], PARAMS)
        submit = await submitted(workers[1])
        failure = Failed(
            workers[1].incarnation, live_proxy.proxy.incarnation, submit.request_id, 0, "the handoff failed"
        )
        workers[1].say(failure)
        again = await submitted(workers[2])
        assert (again.phase, again.attempt, again.transfer_id) == ("decode", 1, f"{submit.request_id}.1")
        # The first attempt is cancelled before the second is dispatched, so its blocks are free (C15).
        cancel = await asyncio.to_thread(workers[0].cancels.get, timeout=60)
        assert (cancel.request_id, cancel.attempt) == (submit.request_id, 0)
        workers[1].say(failure)
        await until(lambda: live_proxy.value("pontil_frames_dropped_total", reason="stale") == 1)
        assert live_proxy.value("pontil_failovers_total", cause="failed") == 1

    play(scene)


def test_a_refusal_is_the_clients_and_is_not_tried_again(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(worker)
        worker.say(Failed(worker.incarnation, worker.proxy, submit.request_id, 0, "too long", 400))
        with pytest.raises(Exception, match="too long"):
            await take(stream)
        assert worker.submits.empty()
        balanced(live_proxy)

    play(scene)


def test_tokens_that_were_lost_are_made_again(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        def forgetful(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
            skipped = 3 if submit.attempt == 0 else -1
            return (frame for number, frame in enumerate(proper(worker, submit)) if number != skipped)

        await live_proxy.worker("mixed:0", script=forgetful)
        text, _, end = await collect(live_proxy.submit([5], PARAMS))
        assert text == TEXT and end.reason == "stop"
        assert live_proxy.value("pontil_failovers_total", cause="broken") == 1
        await until(lambda: live_proxy.proxy.ledger.imbalance == 0)

    play(scene)


def test_a_silent_worker_that_wakes_up_is_stale(play: Play) -> None:
    """The worker was stopped for longer than its time to live, on a host without our supervisor."""

    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(first)
        first.say(first.tokens(submit, 0, [10]))
        assert isinstance(await take(stream), Delta)
        second = await live_proxy.worker("mixed:1", script=silent)
        gone = live_proxy.proxy.registry.remove([live_proxy.proxy.registry.workers[first.incarnation]])
        live_proxy.proxy.lose(gone, "silent", "went silent")
        again = await submitted(second)
        first.say(Tokens(first.incarnation, first.proxy, submit.request_id, 0, 1, [66]))
        await until(lambda: live_proxy.value("pontil_frames_dropped_total", reason="stale") >= 1)
        second.say(second.tokens(again, 1, [11], finish_reason="stop", generated_tokens=1))
        assert (await collect(stream))[1] == [11]
        assert live_proxy.proxy.ledger.totals.discarded["late"] == 1
        balanced(live_proxy)

    play(scene)


@pytest.mark.parametrize("more", [{}, {"disagg": "never"}])
def test_many_streams_survive_many_deaths(play: Play, more: dict[str, Any]) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        for name in ("prefill:0", "prefill:1", "decode:0", "decode:1"):
            # However fast the machine is, those of the first that dies have not ended before.
            script = first_only(7) if name == "decode:0" else proper
            await live_proxy.worker(name, pace=0.002, script=script)
        streams = [live_proxy.submit([5, 6], PARAMS) for _ in range(24)]
        readers = [asyncio.create_task(collect(stream)) for stream in streams]
        for worker in (live_proxy.workers[2], live_proxy.workers[0]):
            await until(lambda: sum(stream.usage.completion_tokens for stream in streams) > 24)
            await asyncio.to_thread(worker.die)
            lost(live_proxy, worker)
        answers = await asyncio.gather(*readers)
        assert {answer[0] for answer in answers} == {TEXT}
        assert len({answer[2].usage for answer in answers}) == 1
        assert live_proxy.value("pontil_failovers_total", cause="died") > 0
        balanced(live_proxy)

    play(scene, **more)
