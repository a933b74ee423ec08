# SPDX-License-Identifier: Apache-2.0
"""The writer: groups, receipts, and a disk that fails."""

import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from usage_rows import REQUEST

from pontil.runtime.accounting import usage_log
from pontil.runtime.accounting.usage_file import OPEN, Row, UsageFile, open_to_read
from pontil.runtime.accounting.usage_log import UsageLog

DEADLINE = 10.0


class Disk:
    """Keeps rows; fails while `full`, and waits while it is not `free`."""

    def __init__(self) -> None:
        self.full = self.closed = False
        self.free, self.tried, self.written = threading.Event(), threading.Event(), threading.Event()
        self.free.set()
        self.groups: list[list[Row]] = []

    def write(self, rows: Iterable[Row]) -> None:
        self.tried.set()
        assert self.free.wait(DEADLINE)
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        self.groups.append(list(rows))
        self.written.set()

    def close(self) -> None:
        self.closed = True


def test_a_receipt_is_done_when_the_row_is_on_the_disk(tmp_path: Path) -> None:
    log = UsageLog(UsageFile(tmp_path / "usage.db"))
    receipt = log.post([REQUEST], wanted=True)
    assert receipt is not None
    receipt.result(DEADLINE)
    database = open_to_read(tmp_path / "usage.db")
    assert database.execute("SELECT count(*) FROM requests").fetchone() == (1,)
    database.close()
    log.close()


def test_what_comes_while_the_disk_is_busy_is_one_group_with_the_last_of_each_row() -> None:
    disk = Disk()
    disk.free.clear()
    log = UsageLog(disk)
    log.post([replace(REQUEST, id="first")])
    assert disk.tried.wait(DEADLINE)
    for count in range(50):
        log.post([replace(REQUEST, state=OPEN, completion_tokens=count), replace(REQUEST, id=str(count))])
    disk.free.set()
    log.close()
    assert disk.closed and [len(group) for group in disk.groups] == [1, 51]
    assert disk.groups[1][0] == replace(REQUEST, state=OPEN, completion_tokens=49)


def test_a_full_disk_stops_nobody_and_its_rows_are_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "RETRY", 0.01)
    disk = Disk()
    disk.full = True
    log = UsageLog(disk)
    receipt = log.post([replace(REQUEST, state=OPEN)], wanted=True)
    assert receipt is not None
    receipt.result(DEADLINE)
    assert log.failing and log.failures >= 1
    assert log.post([REQUEST], wanted=True) is None, "nobody waits for a disk that fails"
    disk.full = False
    assert disk.written.wait(DEADLINE)
    log.close()
    assert not log.failing and disk.groups == [[REQUEST]]


def test_memory_is_bounded_while_the_disk_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "MOST_PENDING", 10)
    disk = Disk()
    disk.full = True
    log = UsageLog(disk)
    log.post(replace(REQUEST, id=str(number)) for number in range(30))
    log.post([REQUEST], wanted=True)
    log.close()
    assert log.given_up >= 20 and len(log.pending.rows) <= 11 and disk.closed
