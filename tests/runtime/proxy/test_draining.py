# SPDX-License-Identifier: Apache-2.0
"""Workers that drain, come back and change their roles, as the proxy hears of it."""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from house import TEXT, House, collect, submitted, until
from scripted_worker import ScriptedWorker, proper, silent

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.registry import Worker
from pontil.runtime.proxy.request import MOST_MOVES
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Duty, Failed, Message, Submit

PARAMS = SamplingParams(max_tokens=60, seed=1)
Play = Callable[..., None]


def known(house: House, worker: ScriptedWorker) -> Worker:
    return house.proxy.registry.workers[worker.incarnation]


async def tells(house: House, worker: ScriptedWorker, role: str, draining: bool) -> None:
    worker.say(Duty(worker.incarnation, worker.proxy, role, draining))
    await until(lambda: known(house, worker).hello.role == role and known(house, worker).leaving == draining)


def gives_back(worker: ScriptedWorker, submit: Submit, moved: bool = True) -> Failed:
    return Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "it drains", 503, moved)


def balanced(house: House) -> None:
    assert house.proxy.idle and house.proxy.ledger.imbalance == 0
    assert all(worker.in_flight == 0 for worker in house.proxy.registry.workers.values())


def test_who_drains_gets_nothing_new_until_it_works_again(play: Play) -> None:  # C1
    async def scene(house: House) -> None:
        one, other = await house.worker("mixed:0"), await house.worker("mixed:1")
        await tells(house, one, "mixed", True)
        streams = [house.proxy.submit([5], PARAMS) for _ in range(4)]
        assert {stream.route for stream in streams} == {"mixed:1"}
        await tells(house, one, "mixed", False)
        assert house.proxy.submit([5], PARAMS).route == "mixed:0"
        streams.append(house.proxy.submit([5], PARAMS))
        assert {answer[0] for answer in await asyncio.gather(*map(collect, streams))} == {TEXT}
        assert other.submits.qsize() >= 4

    play(scene)


def test_what_a_draining_worker_has_goes_on_there(play: Play) -> None:
    async def scene(house: House) -> None:
        worker = await house.worker("mixed:0", pace=0.002)
        await house.worker("mixed:1")
        stream = house.proxy.submit([5], PARAMS)
        await submitted(worker)
        await tells(house, worker, "mixed", True)
        text, _, end = await collect(stream)
        assert text == TEXT and end.route == "mixed:0" and stream.request.attempt == 0

    play(scene)


def test_what_it_gives_back_goes_on_elsewhere_and_is_no_fault(play: Play) -> None:
    """However often that happens: only workers that break count, and here none may."""

    async def scene(house: House) -> None:
        workers = [await house.worker("mixed:0", script=silent)]
        stream = house.proxy.submit([5], PARAMS)
        for number in range(1, 6):
            worker = workers[-1]
            submit = await submitted(worker)
            tokens = worker.tokenizer.encode(TEXT, False)
            worker.say(worker.tokens(submit, number - 1, tokens[number - 1 : number]))
            workers.append(await house.worker(f"mixed:{number}", script=silent if number < 5 else proper))
            await tells(house, worker, "mixed", True)
            worker.say(gives_back(worker, submit))
        text, _, end = await collect(stream)
        assert text == TEXT and end.reason == "stop" and stream.request.attempt == 5
        assert house.value("pontil_failovers_total", cause="moved") == 5
        assert stream.request.broken == set()
        await until(lambda: house.proxy.ledger.imbalance == 0)

    play(scene, max_attempts=1)


def test_moves_without_end_become_faults(play: Play) -> None:
    """A worker that drains, gives back and works again would else keep a request for ever."""

    async def scene(house: House) -> None:
        worker = await house.worker("mixed:0", script=silent)
        stream = house.proxy.submit([5], PARAMS)
        for _ in range(MOST_MOVES + 1):
            submit = await submitted(worker)
            worker.say(Duty(worker.incarnation, worker.proxy, "mixed", True))
            worker.say(gives_back(worker, submit))
            worker.say(Duty(worker.incarnation, worker.proxy, "mixed", False))
        with pytest.raises(Unavailable, match="attempt 1 of 1"):
            await collect(stream)
        balanced(house)

    play(scene, max_attempts=1)


@pytest.mark.parametrize("draining", [True, False])
def test_only_who_drains_may_give_back_without_blame(play: Play, draining: bool) -> None:
    async def scene(house: House) -> None:
        worker = await house.worker("mixed:0", script=silent)
        stream = house.proxy.submit([5], PARAMS)
        submit = await submitted(worker)
        await house.worker("mixed:1")
        if draining:
            await tells(house, worker, "mixed", True)
        worker.say(gives_back(worker, submit))
        if draining:
            assert (await collect(stream))[0] == TEXT
        else:
            with pytest.raises(Unavailable, match="it drains: attempt 1 of 1"):
                await collect(stream)
        balanced(house)

    play(scene, max_attempts=1)


def test_a_request_that_is_given_back_waits_until_somebody_works(play: Play) -> None:
    async def scene(house: House) -> None:
        def late(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
            return proper(worker, submit) if submit.attempt else iter(())

        worker = await house.worker("mixed:0", script=late)
        stream = house.proxy.submit([5], PARAMS)
        submit = await submitted(worker)
        await tells(house, worker, "mixed", True)
        worker.say(gives_back(worker, submit))
        await until(lambda: house.proxy.dispatcher.stranded)
        await tells(house, worker, "mixed", False)
        assert (await collect(stream))[0] == TEXT
        balanced(house)

    play(scene)


def test_a_role_is_what_it_was_last_said_to_be(play: Play) -> None:
    async def scene(house: House) -> None:
        first, second = await house.worker("prefill:0"), await house.worker("decode:0")
        assert house.proxy.submit([5], PARAMS).route == "prefill:0>decode:0"
        await tells(house, first, "decode", False)
        await tells(house, second, "prefill", False)
        stream = house.proxy.submit([5], PARAMS)
        assert stream.route == "decode:0>prefill:0"
        assert (await collect(stream))[0] == TEXT

    play(scene)


def test_a_worker_that_drains_is_shown_so_until_the_table_says_more(play: Play) -> None:
    async def scene(house: House) -> None:
        worker = await house.worker("mixed:0")
        await tells(house, worker, "mixed", True)
        assert [row["state"] for row in house.proxy.topology() if row["role"] == "mixed"] == ["DRAINING"]
        table: list[dict[str, Any]] = [
            {"name": "mixed:0", "role": "mixed", "pid": os.getpid(), "state": "drained", "device": "cpu"}
        ]
        house.proxy.take_table(table)
        assert [row["state"] for row in house.proxy.topology()][-1] == "DRAINED"
        assert worker.incarnation in house.proxy.registry.workers

    play(scene)
