# SPDX-License-Identifier: Apache-2.0
"""Turns go round the callers, and what waits is bounded for each."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from pontil.http.intake.caller_turns import CALLER, CallerTurns
from pontil.runtime.errors import Unavailable


def in_turns(most: int, script: Callable[[CallerTurns], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(script(CallerTurns(most, "grammars")), 60.0))


async def as_caller(caller: str, turns: CallerTurns, order: list[str], size: int = 1) -> None:
    CALLER.set(caller)
    async with turns.turn(size):
        order.append(caller)
        await asyncio.sleep(0)


def test_another_caller_waits_for_one_turn_of_each_and_not_for_all_of_them() -> None:
    async def script(turns: CallerTurns) -> None:
        order: list[str] = []
        tasks = [asyncio.ensure_future(as_caller("greedy", turns, order)) for _ in range(8)]
        await asyncio.sleep(0)
        tasks += [asyncio.ensure_future(as_caller(name, turns, order)) for name in ("ann", "bob")]
        await asyncio.gather(*tasks)
        assert order.index("ann") <= 2 and order.index("bob") <= 3
        assert order.count("greedy") == 8 and not turns.taken and not turns.room.total

    in_turns(1000, script)


def test_one_caller_cannot_fill_the_room_of_all() -> None:
    async def script(turns: CallerTurns) -> None:
        order: list[str] = []
        await turns.take(0)
        tasks = [asyncio.ensure_future(as_caller("greedy", turns, order, 10)) for _ in range(20)]
        await asyncio.sleep(0)
        assert turns.room.total == 50, "as much as it leaves"
        tasks.append(asyncio.ensure_future(as_caller("ann", turns, order, 20)))
        await asyncio.sleep(0)
        turns.release()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [end for end in ends if end is not None]
        assert len(refused) == 15 and ends[-1] is None
        for one in refused:
            assert isinstance(one, Unavailable) and one.retry_after and "too many grammars" in str(one)

    in_turns(100, script)


def test_a_wait_ends_in_time_and_leaves_no_turn_behind() -> None:
    async def script(turns: CallerTurns) -> None:
        await turns.take(1)
        with pytest.raises(Unavailable, match="other grammars took 0.01 s"):
            await turns.take(1, 0.01)
        left = asyncio.ensure_future(turns.take(1))
        given = asyncio.ensure_future(turns.take(1))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        turns.release()
        # It has the turn, and is cancelled before it runs.
        given.cancel()
        await asyncio.wait([left, given])
        assert given.cancelled() and not turns.taken and not turns.room.total

    in_turns(100, script)


def test_any_mix_of_callers_ends_with_the_turn_free() -> None:
    """One holds the turn at a time, whoever is cancelled."""
    for seed in range(40):
        source = random.Random(seed)

        async def script(turns: CallerTurns, source: random.Random = source) -> None:
            holding = 0

            async def work(caller: str) -> None:
                nonlocal holding
                CALLER.set(caller)
                async with turns.turn(source.randrange(20), source.choice([None, 0.001, 5.0])):
                    holding += 1
                    assert holding == 1
                    try:
                        for _ in range(source.randrange(3)):
                            await asyncio.sleep(0)
                    finally:
                        holding -= 1

            tasks: list[asyncio.Future[None]] = []
            for _ in range(60):
                tasks.append(asyncio.ensure_future(work(source.choice("abc"))))
                if source.random() < 0.3:
                    await asyncio.sleep(0)
                if source.random() < 0.2:
                    source.choice(tasks).cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert not any(isinstance(end, AssertionError) for end in ends)
            assert not turns.taken and not turns.room.total and not turns.room.held and not len(turns.waiting)

        in_turns(150, script)
