# SPDX-License-Identifier: Apache-2.0
"""An executor that runs one job at a time in a thread, so that the event loop keeps serving streams."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from pontil.http.intake.caller_turns import CallerTurns

MOST_WAITING = 16 << 20
"""Bytes of requests that may wait for their turn."""

T = TypeVar("T")


class OrderedExecutor:
    """Executor with one thread at a time: even a thread that mostly runs C code competes with the event loop for the
    GIL, so there is only one however many requests wait. Callers have turns, each of them in FIFO order.

    A job that has started keeps its turn until its thread is done, even if its caller was cancelled.
    """

    def __init__(self) -> None:
        self.turns = CallerTurns(MOST_WAITING, "long requests")

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Return or raise what `work` does. `size` is the number of request bytes that it holds. Raises Unavailable at
        once where too much is queued."""
        await self.turns.take(size)
        future = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work)
        future.add_done_callback(self.ended)
        return await asyncio.shield(future)

    def ended(self, future: "asyncio.Future[T]") -> None:
        self.turns.release()
        if not future.cancelled():
            # Marks the exception as retrieved, also where the caller was cancelled.
            future.exception()
