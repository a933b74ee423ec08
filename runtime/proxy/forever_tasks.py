# SPDX-License-Identifier: Apache-2.0
"""The tasks of a process that run for as long as it serves, and waits of theirs that lose no cancellation: a task that
goes on after it was cancelled keeps its process from ending."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pontil.runtime.threads import ThreadFailures, go_on


class ForeverTasks:
    """The works that are to run in the event loop, each in a task that survives its exceptions. `add`, then `start`."""

    def __init__(self, failures: ThreadFailures) -> None:
        self.failures = failures
        self.works: list[tuple[Callable[..., Awaitable[None]], tuple[Any, ...]]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def add(self, work: Callable[..., Awaitable[None]], *given: Any) -> None:
        self.works.append((work, given))

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(go_on(self.failures, work, *given)) for work, given in self.works]

    async def end(self) -> None:
        """Cancel all, and wait until they have ended."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, so long at most; return whether it is set. A cancellation that comes together with it is
    raised, which `asyncio.wait_for` loses before Python 3.12."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([waiting], timeout=seconds)
    finally:
        waiting.cancel()
    return event.is_set()


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do all of a work that has an end. Whoever was cancelled meanwhile is so afterwards."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    failure = task.exception()
    if cancelled is not None or failure is not None:
        raise cancelled or failure  # type: ignore[misc]
