# SPDX-License-Identifier: Apache-2.0
"""The tasks of a process that run for as long as it serves, and its ticks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pontil.runtime.threads import ThreadFailures, go_on

# A tick this late, in seconds, means that this process was stopped or overloaded: workers' messages are still unread.
LATE = 1.0


class Ticks:
    """The ticks of the event loop: their `number`, and the time of the last one."""

    def __init__(self, now: float) -> None:
        self.number, self.last = 0, now

    def take(self, now: float) -> bool:
        """Count a tick; return whether it is in time."""
        self.number += 1
        late, self.last = now - self.last > LATE, now
        return not late


class ForeverTasks:
    """The works that are to run in the event loop, each in a task that survives its exceptions. `add`, then `start`.
    One of them counts the `ticks`, which began at `now`."""

    def __init__(self, failures: ThreadFailures, now: float) -> None:
        self.failures, self.ticks = failures, Ticks(now)
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
