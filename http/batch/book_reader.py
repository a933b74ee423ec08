# SPDX-License-Identifier: Apache-2.0
"""The batch book, read and written in a thread."""

import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pontil.http.intake.ordered_executor import OrderedExecutor
from pontil.http.store.batch_book import BatchBook
from pontil.runtime.errors import RequestError, Unavailable, UsageLogError
from pontil.runtime.proxy.requests.shared_room import SharedRoom
from pontil.runtime.proxy.requests.ticket import NO_KEY

LOG = logging.getLogger("pontil.batches")
DISK_FAULTS = (sqlite3.Error, OSError, UsageLogError)
# Bytes that a request to read holds while it waits.
READING = 256
# Bytes of all uploaded files.
MOST_KEPT = 8 << 30

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


def check_room(book: BatchBook, caller: str, size: int) -> None:
    """Raise RequestError (413) where so many bytes more of a caller's are too many: none may take all room. Blocks."""
    room = SharedRoom(MOST_KEPT)
    for owner, kept in book.kept().items():
        room.hold(owner, kept)
    if size > MOST_KEPT or not room.fits(caller, size):
        own, free = room.held[caller], MOST_KEPT - room.total
        says = f"your files have {own} bytes, and of {MOST_KEPT} for all {free} are free: delete some"
        shared = "" if caller == NO_KEY else "; a key may have as much as it leaves free"
        raise RequestError(says + shared, status=413, param="file")
