# SPDX-License-Identifier: Apache-2.0
"""Workers that drain, return and change their roles, as the proxy sees it."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from live_proxy import TEXT, LiveProxy, collect, lost, submitted, until
from scripted_worker import ScriptedWorker, proper, silent

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.requests.attempts import MOST_EXCUSED
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Failed, Goodbye, Message, RoleChange, Submit

PARAMS = SamplingParams(max_tokens=60, seed=1)
Play = Callable[..., None]


def known(live_proxy: LiveProxy, worker: ScriptedWorker) -> RegisteredWorker:
    return live_proxy.proxy.registry.workers[worker.incarnation]


async def tells(live_proxy: LiveProxy, worker: ScriptedWorker, role: str, draining: bool) -> None:
    worker.say(RoleChange(worker.incarnation, worker.proxy, role, draining))
    await until(lambda: known(live_proxy, worker).hello.role == role and known(live_proxy, worker).leaving == draining)


def gives_back(worker: ScriptedWorker, submit: Submit, moved: bool = True) -> Failed:
    return Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "it drains", 503, moved)


def balanced(live_proxy: LiveProxy) -> None:
    assert live_proxy.proxy.idle and live_proxy.proxy.ledger.imbalance == 0
    assert all(worker.in_flight == 0 for worker in live_proxy.proxy.registry.workers.values())


def test_who_drains_gets_nothing_new_until_it_works_again(play: Play) -> None:  # C1
    async def scene(live_proxy: LiveProxy) -> None:
        one, other = await live_proxy.worker("mixed:0"), await live_proxy.worker("mixed:1")
        await tells(live_proxy, one, "mixed", True)
        streams = [live_proxy.submit([5], PARAMS) for _ in range(4)]
        assert {stream.route for stream in streams} == {"mixed:1"}
        await tells(live_proxy, one, "mixed", False)
        assert live_proxy.submit([5], PARAMS).route == "mixed:0"
        streams.append(live_proxy.submit([5], PARAMS))
        assert {answer[0] for answer in await asyncio.gather(*map(collect, streams))} == {TEXT}
        assert other.submits.qsize() >= 4

    play(scene)


def test_what_a_draining_worker_has_goes_on_there(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", pace=0.002)
        await live_proxy.worker("mixed:1")
        stream = live_proxy.submit([5], PARAMS)
        await submitted(worker)
        await tells(live_proxy, worker, "mixed", True)
        text, _, end = await collect(stream)
        assert text == TEXT and end.route == "mixed:0" and stream.request.attempts.number == 0

    play(scene)


def test_what_it_gives_back_goes_on_elsewhere_and_is_no_fault(play: Play) -> None:
    """Requests may move any number of times: only failures of workers count, and none is allowed here."""

    async def scene(live_proxy: LiveProxy) -> None:
        workers = [await live_proxy.worker("mixed:0", script=silent)]
        stream = live_proxy.submit([5], PARAMS)
        for number in range(1, 6):
            worker = workers[-1]
            submit = await submitted(worker)
            tokens = worker.tokenizer.encode(TEXT, False)
            worker.say(worker.tokens(submit, number - 1, tokens[number - 1 : number]))
            workers.append(await live_proxy.worker(f"mixed:{number}", script=silent if number < 5 else proper))
            await tells(live_proxy, worker, "mixed", True)
            worker.say(gives_back(worker, submit))
        text, _, end = await collect(stream)
        assert text == TEXT and end.reason == "stop" and stream.request.attempts.number == 5
        assert live_proxy.value("pontil_failovers_total", cause="moved") == 5
        assert stream.request.attempts.broken == set()
        await until(lambda: live_proxy.proxy.ledger.imbalance == 0)

    play(scene, max_attempts=1)


def test_moves_without_end_become_faults(play: Play) -> None:
    """A worker that drains, returns its requests and works again would otherwise keep a request for ever."""

    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        for _ in range(MOST_EXCUSED + 1):
            submit = await submitted(worker)
            worker.say(RoleChange(worker.incarnation, worker.proxy, "mixed", True))
            worker.say(gives_back(worker, submit))
            worker.say(RoleChange(worker.incarnation, worker.proxy, "mixed", False))
        with pytest.raises(Unavailable, match="attempt 1 of 1"):
            await collect(stream)
        balanced(live_proxy)

    play(scene, max_attempts=1)


@pytest.mark.parametrize("draining", [True, False])
def test_only_who_drains_may_give_back_without_blame(play: Play, draining: bool) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(worker)
        await live_proxy.worker("mixed:1")
        if draining:
            await tells(live_proxy, worker, "mixed", True)
        worker.say(gives_back(worker, submit))
        if draining:
            assert (await collect(stream))[0] == TEXT
        else:
            with pytest.raises(Unavailable, match="it drains: attempt 1 of 1"):
                await collect(stream)
        balanced(live_proxy)

    play(scene, max_attempts=1)


def test_a_request_that_is_given_back_waits_until_somebody_works(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        def late(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
            return proper(worker, submit) if submit.attempt else iter(())

        worker = await live_proxy.worker("mixed:0", script=late)
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(worker)
        await tells(live_proxy, worker, "mixed", True)
        worker.say(gives_back(worker, submit))
        await until(lambda: live_proxy.proxy.dispatcher.stranded)
        await tells(live_proxy, worker, "mixed", False)
        assert (await collect(stream))[0] == TEXT
        balanced(live_proxy)

    play(scene)


def test_a_role_is_what_it_was_last_said_to_be(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        first, second = await live_proxy.worker("prefill:0"), await live_proxy.worker("decode:0")
        assert live_proxy.submit([5], PARAMS).route == "prefill:0>decode:0"
        await tells(live_proxy, first, "decode", False)
        await tells(live_proxy, second, "prefill", False)
        stream = live_proxy.submit([5], PARAMS)
        assert stream.route == "decode:0>prefill:0"
        assert (await collect(stream))[0] == TEXT

    play(scene)


def test_a_worker_that_drains_is_shown_so_until_the_table_says_more(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0")
        await tells(live_proxy, worker, "mixed", True)
        assert [row["state"] for row in live_proxy.proxy.topology() if row["role"] == "mixed"] == ["DRAINING"]
        table: list[dict[str, Any]] = [
            {"name": "mixed:0", "role": "mixed", "pid": worker.pid, "state": "drained", "device": "cpu"}
        ]
        live_proxy.proxy.take_table(table)
        assert [row["state"] for row in live_proxy.proxy.topology()][-1] == "DRAINED"
        assert worker.incarnation in live_proxy.proxy.registry.workers

    play(scene)


@pytest.mark.parametrize("drained", [True, False])
def test_a_prefill_worker_that_drained_takes_no_request_with_it(play: Play, drained: bool) -> None:
    """It ends before the first token of a prompt that it handed over. One that says no such thing may have lost it."""

    async def scene(live_proxy: LiveProxy) -> None:
        prefill = await live_proxy.worker("prefill:0", script=silent)
        decode = await live_proxy.worker("decode:0", script=silent)
        stream = live_proxy.submit([5], PARAMS)
        submit = await submitted(decode)
        await tells(live_proxy, prefill, "prefill", True)
        prefill.say(Goodbye(prefill.incarnation, prefill.proxy, drained))
        await until(lambda: known(live_proxy, prefill).contact.drained == drained)
        lost(live_proxy, prefill)
        assert live_proxy.value("pontil_failovers_total", cause="died") == (0 if drained else 1)
        submit = submit if drained else await submitted(decode)
        for message in proper(decode, submit):
            decode.say(message)
        assert (await collect(stream))[0] == TEXT and submit.attempt == (0 if drained else 1)

    play(scene)
