# SPDX-License-Identifier: Apache-2.0
"""A proxy's lease stays until its rows are on the disk, whether it died or ended in order."""

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proxy_configs import bare_config
from scripted_worker import eventually
from usage_rows import REQUEST

from pontil.runtime.accounting import usage_log
from pontil.runtime.accounting.usage_tables import CLOSED, LOST, OPEN
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.bookkeeper import Bookkeeper
from pontil.runtime.proxy.siblings.leases import Siblings
from pontil.runtime.proxy.siblings.proxies import Fleet
from pontil.runtime.tokenizer.tokenizer import Tokenizer


def config(folder: Path) -> ProxyConfig:
    return bare_config(usage_log=str(folder / "usage"), shared_folder=str(folder / "proxies"))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(config(tmp_path), "alive", lambda: b"", lambda request: None)
    yield made
    made.close()


def test_a_lease_is_forgotten_once_the_rows_are_written(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_log, "RETRY", 0.01)
    books = Bookkeeper(config(tmp_path), "alive", lambda: 0.0)
    dead, log = Siblings(tmp_path / "proxies", "dead"), books.log
    assert dead.own is not None and fleet.siblings is not None and log is not None
    os.close(dead.own.descriptor)
    eventually(lambda: not log.waiting, "the first row")
    file: Any = log.file
    write, tried = file.write, list[int]()

    def failing(rows: list[Any]) -> None:
        tried.append(len(rows))
        raise sqlite3.OperationalError("full")

    monkeypatch.setattr(file, "write", failing)
    for _ in range(2):
        # The second look comes while the log is known to fail.
        fleet.mourned.clear()
        fleet.bury("dead", [], books.lose)
        tried.clear()
        eventually(lambda: len(tried) > 1, "tries to write")
        assert fleet.siblings.gone() == ["dead"]
    monkeypatch.setattr(file, "write", write)
    eventually(lambda: fleet.siblings is not None and fleet.siblings.gone() == [], "a lease that is forgotten")
    books.end()


@pytest.mark.parametrize("full", [True, False])
def test_what_a_proxy_could_not_write_when_it_ended_is_settled_by_others(
    tmp_path: Path, fleet: Fleet, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    books = Bookkeeper(config(tmp_path), "alive", lambda: 0.0)
    leaving = Proxy(replace(config(tmp_path), control=f"ipc://{tmp_path}/control"), tokenizer)
    log, theirs, siblings = books.log, leaving.books.log, fleet.siblings
    assert log is not None and theirs is not None and siblings is not None
    row = replace(REQUEST, proxy=leaving.incarnation)
    theirs.post([replace(row, state=OPEN)])
    eventually(lambda: not log.waiting and not theirs.waiting, "an open row")
    if full:
        monkeypatch.setattr(theirs.file, "write", refused)
    theirs.post([row])
    leaving.bind()
    asyncio.run(leaving.close())
    assert siblings.gone() == ([leaving.incarnation] if full else [])
    for incarnation in siblings.gone():
        fleet.bury(incarnation, [], books.lose)
    eventually(lambda: siblings.gone() == [], "a lease that is forgotten")
    books.end()
    with closing(sqlite3.connect(tmp_path / "usage")) as database:
        assert database.execute("SELECT state FROM requests").fetchall() == [(LOST if full else CLOSED,)]


def refused(rows: list[Any]) -> None:
    raise sqlite3.OperationalError("database or disk is full")
