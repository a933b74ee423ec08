# SPDX-License-Identifier: Apache-2.0
"""The usage log's writer: a thread that commits in groups, so that the event loop never waits for a disk (A12)."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from pontil.runtime.accounting.usage_tables import KEYS, Posted
from pontil.runtime.errors import UsageLogError
from pontil.runtime.threads import ThreadFailures, TurnThread

# Seconds until rows are tried again after a failure: at least, and for each second that the failed attempt took.
RETRY, REST = 1.0, 20.0
# Rows kept while nothing can be written; beyond this the oldest are dropped, and counted.
MOST_PENDING = 200_000
CLOSE_WITHIN = 5.0
# Errors of the row, which would occur each time, not of the file: SQLite cannot store a value, or refuses it.
ROW_FAULTS = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
    OverflowError,
    TypeError,
    ValueError,
)
LOG = logging.getLogger("pontil.usage")


class Writable(Protocol):
    """The destination of rows, which is tidied after each group. Raises sqlite3.Error or UsageLogError when they cannot
    be written now."""

    def write(self, rows: Sequence[Posted]) -> None: ...

    def tidy(self) -> None: ...

    def end(self) -> None: ...


@dataclass(slots=True)
class Group:
    """Rows that are written together, the last version of each, the futures that wait for them, and the work that is
    done once they are on the disk."""

    rows: dict[tuple[object, ...], Posted] = field(default_factory=dict)
    receipts: "list[Future[None]]" = field(default_factory=list)
    works: list[Callable[[], None]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.works


class UsageLog:
    """The usage log's queue and thread. `post` from any thread; `close` writes what is left. A file that cannot be
    written to never stops serving: rows wait, in bounded number, until it can. `failing` is true while they do,
    `failures` counts failed writes, `given_up` dropped rows; `complaint` is the current error. A row that can never be
    written is dropped by itself, and all that wait are when the log is closed and they cannot be written now."""

    def __init__(self, file: Writable, threads: ThreadFailures | None = None) -> None:
        self.file = file
        self.pending, self.in_hand = Group(), Group()
        # Held to change `pending`. What is posted while a thread holds it is written together.
        self.lock = threading.RLock()
        self.failing = False
        self.failures = self.given_up = 0
        self.retry_at = 0.0
        self.complaint: str | None = None
        self.thread = TurnThread(self.turn, "usage-log", threads, self.mend, file.end)
        self.thread.start()

    def post(self, rows: Iterable[Posted], wanted: bool = False) -> "Future[None] | None":
        """Queue these rows to be written together. If `wanted`, return a future that is done when they are on the disk,
        or turn out not to get there now; None while the file cannot be written or the log is closing."""
        receipt: Future[None] | None = None
        with self.lock:
            for row in rows:
                self.pending.rows[key_of(row)] = row
            if wanted and not self.failing and not self.is_closing:
                receipt = Future()
                self.pending.receipts.append(receipt)
        self.thread.wake()
        return receipt

    def when_written(self, work: Callable[[], None]) -> None:
        """Do this in the log's thread once all rows that were posted are on the disk, or given up: not before, however
        long that takes, and never if the log is closed before."""
        with self.lock:
            self.pending.works.append(work)
        self.thread.wake()

    @property
    def is_closing(self) -> bool:
        return self.thread.closing.is_set()

    def turn(self) -> float | None:
        """Write what waits. Return the time until the rest may be tried."""
        if not self.pending.is_empty and (self.is_closing or time.monotonic() >= self.retry_at):
            self.write_pending()
        if self.pending.is_empty:
            return None
        return 0.0 if self.is_closing else max(0.0, self.retry_at - time.monotonic())

    def write_pending(self) -> None:
        with self.lock:
            self.in_hand, self.pending = self.pending, Group()
        began = time.monotonic()
        try:
            self.write(list(self.in_hand.rows.values()))
        except (sqlite3.Error, UsageLogError) as error:
            self.failed(error, time.monotonic() - began)
        else:
            self.written()
            self.tidy()

    def tidy(self) -> None:
        """Remove what is old. What fails is tried again later, and holds up no row."""
        try:
            self.file.tidy()
        except sqlite3.Error as error:
            LOG.warning("old requests cannot be removed from the usage log now: %s", error)

    def write(self, rows: Sequence[Posted]) -> None:
        """Write all rows in one transaction; if one row makes that fail, each in its own. Raise as the file does."""
        if not rows:
            return
        try:
            self.file.write(rows)
        except ROW_FAULTS as error:
            if len(rows) > 1:
                for row in rows:
                    self.write([row])
                return
            self.given_up += 1
            LOG.error("a row of the usage log cannot be written and is left out (%r): %s", error, rows[0])

    def mend(self, error: BaseException) -> None:
        """Put the rows in hand back into the queue after an unexpected exception."""
        self.failed(error)

    @property
    def waiting(self) -> int:
        """The number of rows that are not on the disk yet."""
        return len(self.pending.rows) + len(self.in_hand.rows)

    def written(self) -> None:
        if self.failing:
            LOG.warning("the usage log can be written to again")
        self.failing, self.complaint = False, None
        group, self.in_hand = self.in_hand, Group()
        sign(group.receipts)
        real = self.thread.thread
        for work in group.works:
            real.failures.contain(real.name, work)

    def failed(self, error: BaseException, took: float = 0.0) -> None:
        """Put the rows back into the queue, as older than those that came meanwhile, and release the futures that wait
        for them."""
        if not self.failing:
            LOG.error("the usage log cannot be written to (%s): serving goes on, and its rows are tried again", error)
        group, self.in_hand = self.in_hand, Group()
        with self.lock:
            self.failing, self.complaint = True, f"the usage log cannot be written to ({error}): its rows wait"
            self.failures += 1
            self.retry_at = time.monotonic() + max(RETRY, REST * took)
            self.pending.rows = group.rows | self.pending.rows
            if self.is_closing and self.pending.rows:
                LOG.error("the last %d rows of the usage log are lost: %s", len(self.pending.rows), error)
            self.drop_rows(0 if self.is_closing else MOST_PENDING)
            self.pending.works = [] if self.is_closing else [*group.works, *self.pending.works]
            receipts, self.pending.receipts = group.receipts + self.pending.receipts, []
        sign(receipts)

    def drop_rows(self, most: int) -> None:
        """Give up the oldest rows beyond so many."""
        while len(self.pending.rows) > most:
            del self.pending.rows[next(iter(self.pending.rows))]
            self.given_up += 1

    def close(self) -> None:
        self.thread.close(CLOSE_WITHIN)


def sign(receipts: "Iterable[Future[None]]") -> None:
    """Complete the futures. Some may have been cancelled."""
    for receipt in receipts:
        if receipt.set_running_or_notify_cancel():
            receipt.set_result(None)


def key_of(row: Posted) -> tuple[object, ...]:
    return type(row), *KEYS[type(row)](row)
