# SPDX-License-Identifier: Apache-2.0
"""A wake-up for one waiting task, within one event loop."""

import asyncio


class Wakeup:
    """An event without memory: a wake-up while no task waits is lost. Check the condition first, then wait, with no
    await between. `is_awaited` is read for every token, and therefore a plain attribute."""

    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None
        self.is_awaited = False

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self, patience: float | None = None) -> None:
        """Wait for a wake-up, at most `patience` seconds. A timer costs less than asyncio.wait_for, which starts a
        task."""
        loop = asyncio.get_running_loop()
        self.waiter = loop.create_future()
        self.is_awaited = True
        timer = None if patience is None else loop.call_later(patience, self.wake)
        try:
            await self.waiter
        finally:
            self.waiter, self.is_awaited = None, False
            if timer is not None:
                timer.cancel()
