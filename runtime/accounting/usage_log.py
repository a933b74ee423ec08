# SPDX-License-Identifier: Apache-2.0
"""The usage log's writer: a thread that commits in groups, so that the event loop never waits for a disk (A12)."""

import logging
import sqlite3
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from pontil.runtime.accounting.usage_file import TABLES, Row

# How long after a failure the same rows are tried again, in seconds.
RETRY = 1.0
# Rows kept while nothing can be written; beyond it the oldest are given up, and counted.
MOST_PENDING = 200_000
CLOSE_WITHIN = 5.0
LOG = logging.getLogger("pontil.usage")


class Writable(Protocol):
    """Where rows go. Raises sqlite3.Error when they cannot be written now."""

    def write(self, rows: Iterable[Row]) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Group:
    """What is written together: of each row the last version, and who waits for it."""

    rows: dict[tuple[object, ...], Row] = field(default_factory=dict)
    receipts: "list[Future[None]]" = field(default_factory=list)


class UsageLog:
    """`post` from any thread; `close` writes what is left. A file that cannot be written to never stops anybody: rows
    wait, in bounded number, until it can. `failing` says that they do, `failures` how often, `given_up` counts rows."""

    def __init__(self, file: Writable) -> None:
        self.file = file
        self.pending = Group()
        self.bell = threading.Condition()
        self.stopping = self.failing = False
        self.failures = self.given_up = 0
        self.thread = threading.Thread(target=self.run, name="usage-log", daemon=True)
        self.thread.start()

    def post(self, rows: Iterable[Row], wanted: bool = False) -> "Future[None] | None":
        """Have these rows written, together. Where `wanted`, what is returned is done when they are on the disk; None
        when nobody should wait for that now."""
        receipt: Future[None] | None = None
        with self.bell:
            for row in rows:
                self.pending.rows[key_of(row)] = row
            if wanted and not self.failing and not self.stopping:
                receipt = Future()
                self.pending.receipts.append(receipt)
            self.bell.notify()
        return receipt

    def run(self) -> None:
        while self.wait():
            with self.bell:
                group, self.pending = self.pending, Group()
            try:
                self.file.write(group.rows.values())
            except sqlite3.Error as error:
                self.failed(group, error)
            else:
                self.written(group)
        self.file.close()

    def wait(self) -> bool:
        """Until there is something to write. False once the end is near and nothing is left that can be written."""
        with self.bell:
            if self.failing and not self.stopping:
                self.bell.wait_for(lambda: self.stopping, RETRY)
            self.bell.wait_for(lambda: self.stopping or self.pending.rows)
            return bool(self.pending.rows) and not (self.stopping and self.failing)

    def written(self, group: Group) -> None:
        if self.failing:
            LOG.warning("the usage log can be written to again")
        self.failing = False
        for receipt in group.receipts:
            receipt.set_result(None)

    def failed(self, group: Group, error: sqlite3.Error) -> None:
        """Rows go back, older than those that came meanwhile; nobody waits for them any more."""
        if not self.failing:
            LOG.error("the usage log cannot be written to (%s): serving goes on, and its rows are tried again", error)
        with self.bell:
            self.failing = True
            self.failures += 1
            self.pending.rows = group.rows | self.pending.rows
            while len(self.pending.rows) > MOST_PENDING:
                del self.pending.rows[next(iter(self.pending.rows))]
                self.given_up += 1
            receipts, self.pending.receipts = group.receipts + self.pending.receipts, []
        for receipt in receipts:
            receipt.set_result(None)

    def close(self) -> None:
        with self.bell:
            self.stopping = True
            self.bell.notify()
        self.thread.join(CLOSE_WITHIN)


def key_of(row: Row) -> tuple[object, ...]:
    name, key = TABLES[type(row)]
    return name, *(getattr(row, each) for each in key)
