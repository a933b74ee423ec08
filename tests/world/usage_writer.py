# SPDX-License-Identifier: Apache-2.0
"""The usage log's thread as events: the real queue and file, a group at a time."""

import sqlite3
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from processes import WorldProcess
from virtual_time import HERE

from pontil.runtime.accounting.usage_log import Group, UsageLog, Writable
from pontil.runtime.accounting.usage_tables import Posted
from pontil.runtime.errors import UsageLogError
from pontil.runtime.threads import ThreadFailures

# Seconds until a group is on the disk.
WRITE_SECONDS = 2e-3


class EventUsageLog(UsageLog):
    """The usage log of one proxy."""

    def __init__(self, file: Writable, threads: ThreadFailures | None = None) -> None:
        assert HERE.world.current is not None
        self.process: WorldProcess = HERE.world.current
        self.is_due = False
        super().__init__(file, threads)

    def post(self, rows: Iterable[Posted], wanted: bool = False) -> "Future[None] | None":
        receipt = super().post(rows, wanted)
        self.wake(WRITE_SECONDS)
        return receipt

    def wake(self, seconds: float) -> None:
        if not self.is_due and self.pending.rows:
            self.is_due = True
            self.process.job(self.process.world.now() + seconds, self.write_group)

    def write_group(self) -> None:
        """Do what one turn of `UsageLog.run` does."""
        self.is_due = False
        self.in_hand, self.pending = self.pending, Group()
        try:
            self.write(list(self.in_hand.rows.values()))
        except (sqlite3.Error, UsageLogError) as error:
            self.failed(error)
            self.wake(self.pause)
        else:
            self.written()
            self.tidy()
            self.wake(WRITE_SECONDS)
        self.process.notify()

    def close(self) -> None:
        self.stopping = True
        if self.pending.rows:
            self.write_group()
        self.file.end()


def close_database(log: Any) -> None:
    """End the file as the end of its process does: what was not committed is not there."""
    if log is not None and log.file.database is not None:
        log.file.database.close()
