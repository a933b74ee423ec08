# SPDX-License-Identifier: Apache-2.0
"""Tasks that are cancelled at any turn of the event loop: each ends. One that went on would keep its proxy from ending,
which waits for it."""

import asyncio
from typing import Any

import pytest

from pontil.runtime.proxy.self_test import SelfTest, SelfTestResult
from pontil.runtime.threads import to_its_end
from pontil.runtime.tokenizer.tokenizer import Tokenizer

TURNS = range(8)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def submitting(*_: object) -> Any:
    raise AssertionError("there are no routes")


async def is_ended(task: "asyncio.Task[None]") -> bool:
    """Return whether a task ends within more turns than any that is cancelled needs."""
    await turns(20)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        return False
    return task.cancelled()


@pytest.mark.parametrize("turn", TURNS)
def test_the_self_test_ends_when_it_is_cancelled_as_it_is_woken(tokenizer: Tokenizer, turn: int) -> None:
    async def scene() -> None:
        tester = SelfTest(True, lambda route: tokenizer, list, submitting)
        # It waits with a timeout while a route fails.
        tester.results[()] = SelfTestResult("a>b", error="it does not serve")
        running = asyncio.ensure_future(tester.run())
        await turns(5)
        tester.wakeup.set()
        await turns(turn)
        running.cancel()
        assert await is_ended(running)

    asyncio.run(scene())


@pytest.mark.parametrize("turn", TURNS)
def test_a_work_is_done_to_its_end_however_often_its_caller_is_cancelled(turn: int) -> None:
    done: list[int] = []

    async def work() -> None:
        await turns(6)
        done.append(1)

    async def scene() -> bool:
        running = asyncio.ensure_future(to_its_end(work()))
        await turns(1)
        for _ in range(turn):
            running.cancel()
            await turns(1)
        await asyncio.wait([running])
        return running.cancelled()

    assert asyncio.run(scene()) == bool(turn) and done == [1]
