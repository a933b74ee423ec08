# SPDX-License-Identifier: Apache-2.0
"""Workers whose sockets take no message: their requests wait for a sign of life, or for the next worker."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from event_reader import take
from live_proxy import TEXT, LiveProxy, balanced, collect, lost, row, until
from scripted_worker import ScriptedWorker, silent

from pontil.runtime.errors import Unavailable
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Goodbye, Hello, Message, Submit

PARAMS = SamplingParams(max_tokens=60, seed=1)
Play = Callable[..., None]


def test_a_worker_that_cannot_be_reached_at_first_gets_all_that_wait(play: Play) -> None:
    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("mixed:0", script=silent)
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, fault: faults.append(fault))
        streams = [live_proxy.submit([5], PARAMS) for _ in range(3)]
        lost(live_proxy, first)
        send, refused = live_proxy.proxy.dispatcher.send, iter([True, True])
        live_proxy.proxy.dispatcher.send = lambda message: not (
            isinstance(message, Submit) and next(refused, False)
        ) and send(message)  # fmt: skip
        await live_proxy.worker("mixed:0")
        assert {(await collect(stream))[0] for stream in streams} == {TEXT}
        assert live_proxy.value("pontil_failovers_total", cause="unreachable") == 2 and not faults
        balanced(live_proxy)

    play(scene, max_attempts=4)


def test_a_crowd_that_cannot_be_reached_ends_and_what_came_after_it_is_heard(play: Play) -> None:  # B12, C14
    """The requests are more than Python's stack is deep, behind one message of a batch. One Submit is enough to learn
    that the worker takes none."""

    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("mixed:0", script=silent, max_num_seqs=2_000, max_num_batched_tokens=2_000)
        streams = [live_proxy.submit([5], PARAMS) for _ in range(2_000)]
        lost(live_proxy, first)
        assert len(live_proxy.proxy.dispatcher.stranded) == len(streams)
        dispatcher, send, asked = live_proxy.proxy.dispatcher, live_proxy.proxy.dispatcher.send, list[Submit]()
        second = ScriptedWorker(live_proxy.endpoint, "mixed:1", live_proxy.tokenizer)

        def refuses(message: Message) -> bool:
            asked.extend([message] if isinstance(message, Submit) else [])
            return not isinstance(message, Submit) and send(message)

        dispatcher.send = refuses
        hello = Hello(sender=second.incarnation, name=second.name, role=second.role, **second.hello_fields)  # type: ignore[arg-type]
        live_proxy.proxy.router.on_messages([hello, Goodbye(second.incarnation, live_proxy.proxy.incarnation)])
        assert live_proxy.proxy.registry.is_leaving(second.incarnation)
        assert [(one.request_id, one.attempt) for one in asked] == [(streams[0].request.id, 1)]
        assert len(dispatcher.stranded) == len(streams) and not dispatcher.due
        live_proxy.proxy.take_table([row(first, "given_up")])
        for stream in streams:
            with pytest.raises(Unavailable, match="no worker came back within 0.4 s"):
                await take(stream)
        balanced(live_proxy)

    play(scene, max_attempts=3, failover_timeout=0.4)


def test_a_worker_that_takes_nothing_uses_up_no_attempts(play: Play) -> None:
    """Both workers of a pair die before the proxy is told: its requests wait for the next ones."""

    async def scene(live_proxy: LiveProxy) -> None:
        first = await live_proxy.worker("mixed:0", script=silent)
        dispatcher, send, refused = live_proxy.proxy.dispatcher, live_proxy.proxy.dispatcher.send, 0

        def refuses(message: Message) -> bool:
            nonlocal refused
            lost = isinstance(message, Submit) and message.receiver == first.incarnation
            refused += lost
            return not lost and send(message)

        dispatcher.send = refuses
        streams = [live_proxy.submit([5], PARAMS) for _ in range(3)]
        # Messages that the worker sent before it died are still heard, and each is taken for a sign of life.
        await until(lambda: refused >= 4)
        assert len(dispatcher.stranded) + len(live_proxy.proxy.queue) == 3
        lost(live_proxy, first)
        await live_proxy.worker("mixed:0")
        assert {(await collect(stream))[0] for stream in streams} == {TEXT}
        balanced(live_proxy)

    play(scene, max_attempts=1)
