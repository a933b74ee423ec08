# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a proxy: what workers state is written as it changes, and while nothing happens nothing is."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from proxy_configs import bare_config
from usage_rows import REQUEST

from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.accounting.usage_tables import CLOSED, OPEN, WorkerRow
from pontil.runtime.proxy.requests import bookkeeper
from pontil.runtime.proxy.requests.bookkeeper import Bookkeeper


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Bookkeeper]:
    config = bare_config(usage_log=str(tmp_path / "usage"))
    made = Bookkeeper(config, "p1", lambda: 0.0)
    yield made
    made.end()


@pytest.fixture
def posted(books: Bookkeeper, monkeypatch: pytest.MonkeyPatch) -> list[list[object]]:
    """The groups of rows that are posted to the log, in place of it."""
    groups = list[list[object]]()
    assert books.log is not None
    monkeypatch.setattr(books.log, "post", lambda rows: groups.append(list(rows)))
    return groups


def workers_of(groups: list[list[object]]) -> list[list[str]]:
    """Return the workers whose rows were posted, by group."""
    return [[row.worker for row in group if isinstance(row, WorkerRow)] for group in groups]


def test_a_checkpoint_writes_the_workers_whose_counts_have_changed(
    books: Bookkeeper, posted: list[list[object]]
) -> None:
    for worker in ("w1", "w2"):
        books.ledger.registered(worker, f"decode:{worker}")
    books.checkpoint()
    books.checkpoint()
    books.ledger.stray("w2", "r", 0, 0, 0, 3)
    books.checkpoint()
    books.checkpoint()
    assert workers_of(posted) == [["w1", "w2"], ["w2"]]


def test_all_are_written_anew_while_the_log_may_have_given_some_up(
    books: Bookkeeper, posted: list[list[object]]
) -> None:
    assert books.log is not None
    books.ledger.registered("w1", "decode:0")
    books.checkpoint()
    books.log.failing = True
    books.checkpoint()
    books.log.failing = False
    books.checkpoint()
    assert workers_of(posted) == [["w1"], ["w1"]]


def test_many_requests_are_asked_about_by_one_reading(books: Bookkeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening the file takes longer than asking it."""
    assert books.log is not None
    rows = [replace(REQUEST, id="ended", state=CLOSED), replace(REQUEST, id="runs", state=OPEN)]
    written = books.log.post(rows, wanted=True)
    assert written is not None
    written.result(timeout=60)
    opened = list[Path]()

    def noted(path: Path) -> sqlite3.Connection:
        opened.append(path)
        return open_to_read(path)

    monkeypatch.setattr(bookkeeper, "open_to_read", noted)
    assert books.open_among(["ended", "runs", "unheard of"]) == {"runs", "unheard of"}
    assert len(opened) == 1
    assert books.open_among([]) == set()
    assert len(opened) == 1
