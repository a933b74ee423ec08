# SPDX-License-Identifier: Apache-2.0
"""The tasks of a process that run for as long as it serves."""

import asyncio
from collections.abc import Awaitable, Callable
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
