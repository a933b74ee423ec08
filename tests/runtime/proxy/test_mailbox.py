# SPDX-License-Identifier: Apache-2.0
"""The one-reader queue: waiting items are merged, the end comes once and last."""

import asyncio

import pytest
from event_reader import EventReader

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.requests.answer import Delta, Ended, Finished, Mailbox

END = Finished("stop", Usage(1, 2, 0), "mixed:0")


def test_a_slow_reader_gets_one_delta_then_the_end() -> None:
    async def read() -> None:
        box = Mailbox()
        reader = EventReader(box)
        box.put("a", [1])
        box.put("", [2])
        box.put("b", [3])
        box.close(END)
        box.close(Unavailable("too late"))
        assert await reader.take() == Delta("ab", [1, 2, 3])
        assert await reader.take() == END

    asyncio.run(read())


def test_the_reader_is_woken_by_what_comes() -> None:
    async def read() -> None:
        box = Mailbox()
        reader = EventReader(box)
        asyncio.get_running_loop().call_soon(box.put, "a", [1])
        assert await reader.take() == Delta("a", [1])
        asyncio.get_running_loop().call_soon(box.close, Unavailable("gone"))
        with pytest.raises(Unavailable, match="gone"):
            await reader.take()

    asyncio.run(read())


def test_a_ring_for_nothing_is_no_event_and_a_reader_that_gives_up_loses_nothing() -> None:
    async def read() -> None:
        box = Mailbox()
        reader = EventReader(box)
        assert reader.poll() is None
        asyncio.get_running_loop().call_soon(box.notify)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.take(), 0.001)
        box.put("a", [1])
        assert await reader.take() == Delta("a", [1])

    asyncio.run(read())


def test_choices_are_kept_apart_and_each_ends_after_its_own_text() -> None:
    async def read() -> None:
        box = Mailbox()
        reader = EventReader(box)
        box.put("a", [1], 0, [[[1, -0.5, 1]]])
        box.put("x", [7], 1)
        box.end_choice(1, "stop")
        box.put("b", [2], 0, [[[2, -0.1, 1]]])
        assert await reader.take() == Delta("ab", [1, 2], 0, [[[1, -0.5, 1]], [[2, -0.1, 1]]])
        box.put("c", [3], 0)
        taken = [await reader.take() for _ in range(3)]
        assert taken.index(Delta("x", [7], 1)) < taken.index(Ended(1, "stop"))
        assert Delta("c", [3], 0) in taken
        box.end_choice(0, "length")
        box.close(END)
        assert [await reader.take(), await reader.take()] == [Ended(0, "length"), END]

    asyncio.run(read())


def test_what_is_held_comes_with_its_release_or_with_the_end() -> None:
    async def read() -> None:
        box = Mailbox(held=True)
        reader = EventReader(box)
        box.put("a", [1])
        assert reader.poll() is None
        asyncio.get_running_loop().call_soon(box.release)
        assert await reader.take() == Delta("a", [1])
        box = Mailbox(held=True)
        reader = EventReader(box)
        box.put("a", [1])
        box.close(END)
        assert [await reader.take(), await reader.take()] == [Delta("a", [1]), END]

    asyncio.run(read())
