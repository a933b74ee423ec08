# SPDX-License-Identifier: Apache-2.0
"""The batch book, read and written in a thread."""

import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pontil.http.intake.ordered_executor import OrderedExecutor
from pontil.http.store.batch_book import BatchBook
from pontil.runtime.errors import Unavailable, UsageLogError

LOG = logging.getLogger("pontil.batches")
DISK_FAULTS = (sqlite3.Error, OSError, UsageLogError)
# Bytes that a request to read holds while it waits.
READING = 256

T = TypeVar("T")


class BookReader:
    """The way to a batch book from the event loop."""

    def __init__(self, book: BatchBook) -> None:
        self.book, self.executor = book, OrderedExecutor()
        self.is_failing = False

    async def run(self, work: Callable[[], T], size: int = READING) -> T:
        """Return what `work` does. Raises Unavailable where the disk fails or is full."""
        try:
            done = await self.executor.run(work, size)
        except DISK_FAULTS as error:
            if not self.is_failing:
                LOG.warning("files and batches cannot be read or written now: %s", error)
            self.is_failing = True
            raise Unavailable(f"files and batches cannot be read or written now ({error}): try again later") from None
        self.is_failing = False
        return done

    async def close(self) -> None:
        """Close the book once all that was begun with it is done, also where its caller was cancelled."""
        with suppress(Unavailable):
            await self.run(self.book.close, 0)
