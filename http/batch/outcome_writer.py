# SPDX-License-Identifier: Apache-2.0
"""The writer of a batch's outcomes: first to the batch's files, then, together with what is billed for it, to the usage
log."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pontil.http.batch.book_reader import BookReader
from pontil.http.batch.outcome_lines import LineOutcome
from pontil.http.store.outcome_files import OutcomeFiles
from pontil.runtime.accounting.usage_tables import BatchOutcome
from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.requests.answer import WholeAnswer
from pontil.runtime.proxy.requests.bookkeeper import Bookkeeper

# Seconds until a disk that is full or fails is tried again.
DISK_PAUSE = 1.0
# Seconds that the next outcomes wait for a slow usage log.
LOG_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class ToldOutcome:
    """An outcome that is to be written, and the answer whose accounts are closed with it."""

    outcome: LineOutcome
    whole: WholeAnswer | None

    def bill(self) -> None:
        if self.whole is not None:
            self.whole.end(nothing, failed=False)

    def drop(self) -> None:
        if self.whole is not None:
            self.whole.fail()


def nothing() -> None:
    """Close no account: the answer holds those of its requests until it is kept."""


class OutcomeWriter:
    """The outcomes of one batch. Conservation: each that was told is `waiting` or was posted to the usage log, together
    with its bill, after it was on the disk in the batch's files; what waits when it is stopped is billed to nobody."""

    def __init__(self, batch: str, files: OutcomeFiles, books: Bookkeeper, reader: BookReader) -> None:
        self.batch, self.files, self.books, self.reader = batch, files, books, reader
        self.waiting: list[ToldOutcome] = []
        self.ready, self.emptied = asyncio.Event(), asyncio.Event()

    def tell(self, outcome: LineOutcome, whole: WholeAnswer | None = None) -> None:
        self.waiting.append(ToldOutcome(outcome, whole))
        self.emptied.clear()
        self.ready.set()

    async def run(self) -> None:
        """Write outcomes in groups as they come, until cancelled."""
        while True:
            await self.ready.wait()
            try:
                await self.write()
            except Unavailable:
                # Said in the log: they are tried again.
                await asyncio.sleep(DISK_PAUSE)

    async def write(self) -> None:
        group = list(self.waiting)
        told = [(one.outcome.kind, one.outcome.told) for one in group]
        places = await self.reader.run(partial(self.files.append, told), sum(len(line) for _, line in told))
        rows = [
            BatchOutcome(self.batch, one.outcome.number, one.outcome.outcome, one.outcome.kind, place)
            for one, place in zip(group, places, strict=True)
        ]
        receipt = self.books.close_with(partial(bill_all, group), rows)
        del self.waiting[: len(group)]
        if not self.waiting:
            self.ready.clear()
            self.emptied.set()
        if receipt is not None:
            await asyncio.wait([asyncio.wrap_future(receipt)], timeout=LOG_PATIENCE)
        else:
            # It fails, and keeps so many rows only.
            await self.logged()

    async def written(self) -> None:
        """Wait until everything that was told is on the disk, however long that takes."""
        while self.waiting:
            await self.emptied.wait()
        await self.logged()

    async def logged(self) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self.books.when_written(partial(call_soon, loop, done.set))
        await done.wait()

    def stop(self) -> None:
        for one in self.waiting:
            one.drop()
        self.waiting.clear()


def call_soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Have an event loop do this, from any thread. One that has ended needs no word."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work)


def bill_all(group: list[ToldOutcome]) -> None:
    for one in group:
        one.bill()
