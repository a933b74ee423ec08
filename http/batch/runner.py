# SPDX-License-Identifier: Apache-2.0
"""The runner of batches: in one proxy of a launch at a time, it has the lines of all batches answered in seats that
nobody else wants (docs/decisions/106)."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pontil.http.batch.book_reader import BookReader
from pontil.http.batch.line_request import LineRoutes
from pontil.http.batch.line_room import LineRoom
from pontil.http.batch.running_batch import BatchSite, RunningBatch, stopped
from pontil.http.store.batch_book import BatchRow
from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.threads import is_set_within, to_its_end

# Seconds between two looks at the batches, unless one is made or cancelled here.
LOOK = 1.0


class BatchRunner:
    """The batches that are `running` here, by their ids. Who makes or cancels one here calls `wake`. Lines may have
    `most_line` bytes."""

    def __init__(self, proxy: Proxy, reader: BookReader, routes: LineRoutes, most_line: Callable[[], int]) -> None:
        self.proxy, self.most_line = proxy, most_line
        self.site = BatchSite(proxy, reader, routes, LineRoom(self.seats))
        self.running: dict[str, RunningBatch] = {}
        self.woken = asyncio.Event()

    def seats(self) -> int | None:
        """Return how many requests can be answered at once; None while none is to be begun."""
        if self.proxy.readiness.is_draining:
            return None
        return sum(group.seats.total for group in self.proxy.registry.groups.values())

    def wake(self) -> None:
        self.woken.set()

    async def run(self) -> None:
        """Run batches until cancelled, when the proxy ends. Another one then asks again what has no outcome."""
        try:
            while True:
                try:
                    await self.look()
                except Unavailable:
                    # Said in the log: the disk may be there again later.
                    await asyncio.sleep(LOOK)
                await self.rest()
        finally:
            await to_its_end(self.end())

    async def rest(self) -> None:
        await is_set_within(self.woken, LOOK)
        self.woken.clear()

    async def look(self) -> None:
        """Begin the batches that nobody runs, and tell those that run what was asked of them."""
        self.site.room.look()
        if self.proxy.readiness.is_draining:
            # Another proxy may have them.
            await self.leave()
            return
        for row in await self.site.reader.run(self.site.reader.book.to_run):
            if row.id in self.running:
                self.running[row.id].hear(row)
            else:
                self.begin(row)

    def begin(self, row: BatchRow) -> None:
        batch = self.running[row.id] = RunningBatch(row, self.site)
        batch.task = asyncio.ensure_future(batch.run(self.most_line()))
        batch.task.add_done_callback(partial(self.ended, row.id))

    def ended(self, name: str, task: "asyncio.Task[None]") -> None:
        """Forget a batch that is over. One that failed is begun anew, from what is on the disk."""
        self.running.pop(name, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Unavailable):
            self.proxy.metrics.threads.note("batches", error)

    async def leave(self) -> None:
        await stopped([batch.task for batch in self.running.values() if batch.task is not None])
        await self.site.reader.run(self.site.reader.book.leave, 0)

    async def end(self) -> None:
        with suppress(Unavailable):
            await self.leave()
        await self.site.reader.close()
