# SPDX-License-Identifier: Apache-2.0
"""The writer of the usage log: groups, receipts, and a disk that fails."""

import copy
import sqlite3
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from usage_rows import BALANCED, REQUEST

from pontil.runtime.accounting import usage_log
from pontil.runtime.accounting.usage_file import UsageFile, open_to_read
from pontil.runtime.accounting.usage_log import UsageLog
from pontil.runtime.accounting.usage_tables import OPEN, LostProxy, LostRequest, Posted

DEADLINE = 60.0


class FailingDisk:
    """A file that keeps rows; a write fails while `full`, and waits while it is not `free`."""

    def __init__(self) -> None:
        self.full = self.closed = False
        self.free, self.tried, self.written = threading.Event(), threading.Event(), threading.Event()
        self.free.set()
        self.groups: list[list[Posted]] = []

    def write(self, rows: Iterable[Posted]) -> None:
        self.tried.set()
        assert self.free.wait(DEADLINE)
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        self.groups.append(list(rows))
        self.written.set()

    def tidy(self) -> None:
        pass

    def end(self) -> None:
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
    disk = FailingDisk()
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
    disk = FailingDisk()
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


def test_work_that_needs_the_rows_on_the_disk_waits_until_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "RETRY", 0.01)
    disk, done = FailingDisk(), list[str]()
    disk.full = True
    log = UsageLog(disk)
    receipt = log.post([REQUEST], wanted=True)
    log.when_written(lambda: done.append("one"))
    assert receipt is not None
    receipt.result(DEADLINE)
    ended = threading.Event()
    log.when_written(lambda: done.append("two"))
    assert not done, "a receipt is a promise of no disk"
    disk.full = False
    log.when_written(ended.set)
    assert ended.wait(DEADLINE) and done == ["one", "two"] and disk.groups == [[REQUEST]]
    again = threading.Event()
    log.when_written(again.set)
    assert again.wait(DEADLINE), "nothing is to be written"
    disk.full = True
    log.post([REQUEST])
    log.when_written(lambda: done.append("never"))
    log.close()
    assert done == ["one", "two"] and disk.closed


def test_sums_beyond_what_sqlite_holds_are_cut_and_cost_no_row(tmp_path: Path) -> None:  # A5
    log = UsageLog(UsageFile(tmp_path / "usage.db"))
    huge = replace(REQUEST, id="huge", generated=2**63, discarded=-(2**70))
    receipt = log.post([huge, replace(REQUEST, id="next")], wanted=True)
    assert receipt is not None
    receipt.result(DEADLINE)
    database = open_to_read(tmp_path / "usage.db")
    rows = database.execute("SELECT id, generated, discarded FROM requests ORDER BY id").fetchall()
    assert rows == [("huge", 2**63 - 1, -(2**63 - 1)), ("next", REQUEST.generated, REQUEST.discarded)]
    database.close()
    log.close()
    assert log.given_up == log.failures == 0


@pytest.mark.parametrize("wrong", [{"arrived": float("nan")}, {"name": "\ud800"}, {"generated": None}, {"model": ()}])
def test_a_row_that_can_never_be_written_is_given_up_alone(
    tmp_path: Path, wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    log = UsageLog(UsageFile(tmp_path / "usage.db"))
    names = ["a", "b", "c"]
    receipt = log.post([replace(REQUEST, id=name, **(wrong if name == "b" else {})) for name in names], wanted=True)
    assert receipt is not None
    receipt.result(DEADLINE)
    database = open_to_read(tmp_path / "usage.db")
    assert database.execute("SELECT id FROM requests ORDER BY id").fetchall() == [("a",), ("c",)]
    database.close()
    log.close()
    assert log.given_up == 1 and log.failures == 0 and "left out" in caplog.text


def test_a_receipt_that_nobody_wants_any_more_holds_up_nobody() -> None:
    disk = FailingDisk()
    disk.free.clear()
    log = UsageLog(disk)
    receipts = [log.post([replace(REQUEST, id=name)], wanted=True) for name in ("a", "b")]
    assert receipts[0] is not None and receipts[0].cancel()
    disk.free.set()
    assert receipts[1] is not None and receipts[1].result(DEADLINE) is None
    log.close()
    assert disk.closed and log.failures == 0


def test_rows_that_waited_are_written_at_the_end_if_there_is_room_by_then(caplog: pytest.LogCaptureFixture) -> None:
    disk = FailingDisk()
    disk.full = True
    log = UsageLog(disk)
    receipt = log.post([REQUEST], wanted=True)
    assert receipt is not None
    receipt.result(DEADLINE)
    assert log.waiting == 1
    disk.full = False
    log.close()
    assert disk.groups == [[REQUEST]] and disk.closed and log.given_up == log.waiting == 0
    assert "lost" not in caplog.text


def test_the_end_on_a_full_disk_says_how_many_rows_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    disk = FailingDisk()
    disk.full = True
    log = UsageLog(disk)
    log.post(replace(REQUEST, id=str(number)) for number in range(3))
    log.close()
    assert disk.closed and log.given_up == 3 and log.waiting == 0
    assert "the last 3 rows of the usage log are lost: database or disk is full" in caplog.text


def test_the_more_an_attempt_costs_the_longer_is_the_pause_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    log = UsageLog(FailingDisk())
    for took, pause in ((0.0, usage_log.RETRY), (0.01, usage_log.RETRY), (1.0, usage_log.REST)):
        log.failed(sqlite3.OperationalError("full"), took)
        assert log.retry_at == 100.0 + pause
    log.close()


def test_memory_is_bounded_while_the_disk_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "MOST_PENDING", 10)
    disk = FailingDisk()
    disk.full = True
    log = UsageLog(disk)
    log.post(replace(REQUEST, id=str(number)) for number in range(30))
    log.post([REQUEST], wanted=True)
    log.close()
    assert log.given_up >= 20 and len(log.pending.rows) <= 11 and disk.closed


def test_no_value_is_copied_on_its_way_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(*_: object) -> None:
        raise AssertionError("a value was copied")

    monkeypatch.setattr(copy, "deepcopy", copied)
    log = UsageLog(UsageFile(tmp_path / "usage.db"))
    receipt = log.post([*BALANCED, LostRequest("other"), LostProxy("another", "[]")], wanted=True)
    assert receipt is not None
    receipt.result(DEADLINE)
    log.close()
    assert log.failures == log.given_up == 0
