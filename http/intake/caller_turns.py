# SPDX-License-Identifier: Apache-2.0
"""Turns for work of which little is done at a time, before the request is queued for workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.admission.fair_queue import FairQueue
from pontil.runtime.proxy.requests.shared_room import SharedRoom
from pontil.runtime.proxy.requests.ticket import NO_KEY

# The name of the key whose request is handled.
CALLER: ContextVar[str] = ContextVar("caller", default=NO_KEY)
# Seconds after which a client that was refused may ask again.
RETRY_SECONDS = 1.0


class CallerTurns:
    """Turns, so many `at_once`. Callers that wait have them in rotation, so that each waits for at most one turn of
    every other; those of one caller are in order of arrival. At most `most` bytes wait, shared by callers. `work` is
    what the turns are for, as errors call it.

    Conservation: `taken` is the number of turns that were taken less those released; one waits only while all are
    taken."""

    def __init__(self, most: int, work: str, at_once: int = 1) -> None:
        self.waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self.room, self.work = SharedRoom(most), work
        self.at_once, self.taken = at_once, 0

    async def take(self, size: int, timeout: float | None = None) -> None:
        """Wait for a turn, which ends with `release`. `size` is the number of bytes that wait with it. Raises
        Unavailable at once where too much waits, and after the timeout."""
        if self.taken < self.at_once:
            self.taken += 1
            return
        caller = CALLER.get()
        if not self.room.take(caller, size):
            raise Unavailable(f"too many {self.work} wait: try again in a moment", RETRY_SECONDS)
        turn = asyncio.get_running_loop().create_future()
        self.waiting.push(turn, caller)
        try:
            await asyncio.wait([turn], timeout=timeout)
        except asyncio.CancelledError:
            if not self.waiting.remove(turn):
                self.release()
            raise
        finally:
            self.room.give_back(caller, size)
        if self.waiting.remove(turn):
            raise Unavailable(f"other {self.work} took {timeout:g} s before this one: try again", RETRY_SECONDS)

    def release(self) -> None:
        """Give the turn to the next that waits."""
        if len(self.waiting):
            self.waiting.pop().set_result(None)
        else:
            self.taken -= 1

    @asynccontextmanager
    async def turn(self, size: int, timeout: float | None = None) -> AsyncIterator[None]:
        """Hold a turn. Raises as `take` does."""
        await self.take(size, timeout)
        try:
            yield
        finally:
            self.release()
