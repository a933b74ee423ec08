# SPDX-License-Identifier: Apache-2.0
"""Streams whose end, or row, is not on the disk yet: each is told exactly, and counted once, whoever tells it."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scripted_worker import DEADLINE, eventually
from stream_front import ASK, TEXT, Front, Reader, told

from pontil.runtime.accounting import usage_log
from pontil.runtime.accounting.usage_file import UsageFile
from pontil.runtime.proxy.admission.in_flight import LEFT
from pontil.runtime.proxy.resume import resumable
from pontil.runtime.proxy.resume.resumable import ResumableStreams
from pontil.runtime.proxy.siblings.stream_record import StreamRecord, Sweep
from pontil.runtime.tokenizer.tokenizer import Tokenizer

PATH = "/v1/completions"


@pytest.fixture
def front(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    monkeypatch.setattr(resumable, "LET_GO_WITHIN", 0.2)
    monkeypatch.setattr(usage_log, "RETRY", 0.05)
    made = Front(tmp_path, tokenizer)
    try:
        yield made
    finally:
        made.close()


class FullDisks:
    """The disks of the records and of the usage log, without room while they are named in `full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = set[str]()
        for owner, disk in ((StreamRecord, "run"), (UsageFile, "usage")):
            monkeypatch.setattr(owner, "write", self.failing(disk, owner.write))

    def failing(self, disk: str, write: Any) -> Any:
        def written(file: Any, data: Any) -> None:
            if disk in self.full:
                raise OSError(28, "full") if disk == "run" else sqlite3.OperationalError("full")
            write(file, data)

        return written


@pytest.mark.parametrize("first_room", ["run", "usage"])
def test_an_end_that_is_on_no_disk_is_told_by_who_knows_it(
    first_room: str, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = front.start(0), front.start(1)
    disks = FullDisks(monkeypatch)
    reader = Reader(one, PATH, ASK).read(9)
    had = told(reader)
    event = str(reader.last)
    disks.full |= {"run", "usage"}
    assert told(reader.all()) == TEXT
    assert Reader(two, PATH, {}, event).status == 409, "another proxy does not know how it ended"
    for _ in range(2):
        eventually(lambda: all(each.detached_at for each in one.proxy.streams.journals.values()), "no reader")
        assert had + told(Reader(one, PATH, {}, event).all()) == TEXT
    disks.full.discard(first_room)
    if first_room == "usage":
        eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
        assert Reader(two, PATH, {}, event).status == 409
        disks.full.clear()
    eventually(lambda: Reader(two, PATH, {}, event).status == 200, "an end that others can read")
    assert had + told(Reader(two, PATH, {}, event).all()) == TEXT
    disks.full.clear()
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    assert [at.proxy.ledger.totals.requests for at in (one, two)] == [1, 0]
    assert one.proxy.ledger.imbalance == two.proxy.ledger.imbalance == 0
    assert two.workers[0].submits.empty()


def test_a_stream_is_left_with_all_that_was_delivered_or_not_at_all(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next proxy would count what it computes anew as this one's, and less than that."""
    one, two = front.start(0, pace=0.03), front.start(1)
    disks = FullDisks(monkeypatch)
    first = Reader(one, PATH, ASK).read(9)
    disks.full.add("run")
    first.leave()
    assert Reader(two, PATH, {}, first.last).status == 409
    disks.full.clear()
    readers = list[Reader]()

    def is_let_go() -> bool:
        readers.append(Reader(two, PATH, {}, first.last))
        return readers[-1].status == 200

    eventually(is_let_go, "a stream that the other proxy has let go")
    assert told(first, readers[-1].all()) == TEXT
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")


def as_after_a_death(front: Front) -> None:
    """Have the only proxy end, and its last words be missing in the usage log."""
    front.opened.pop().__exit__(None, None, None)
    with closing(sqlite3.connect(front.usage_log)) as database, database:
        database.execute("UPDATE requests SET state = 'open', finish = NULL")
        database.execute("DELETE FROM proxies")
        database.execute("DELETE FROM workers")


@pytest.mark.parametrize("room", [True, False])
def test_who_tells_the_end_of_a_dead_proxys_stream_closes_its_row_first(
    room: bool, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResumableStreams, "sweep", lambda streams, records: Sweep())
    reader = Reader(front.start(0), PATH, ASK).all()
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    as_after_a_death(front)
    two, three = front.start(1), front.start(0)
    assert [row["state"] for row in front.rows()] == ["open"]
    disks = FullDisks(monkeypatch)
    if not room:
        disks.full |= {"run", "usage"}
    assert told(Reader(two, PATH, {}, reader.stream).all()) == TEXT
    if not room:
        assert Reader(three, PATH, {}, reader.stream).status == 409, "nobody else knows that it is settled"
        disks.full.clear()
        eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    assert [row["state"] for row in front.rows()] == ["closed"]
    eventually(lambda: Reader(three, PATH, {}, reader.stream).status == 200, "a record that is free")
    assert [at.proxy.ledger.totals.requests for at in (two, three)] == [1, 0]


def test_a_stream_that_cannot_be_recorded_as_its_proxy_leaves_ends_there(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older record would have another proxy compute again what this one has booked."""
    one, two = front.start(0, pace=0.05), front.start(1)
    disks = FullDisks(monkeypatch)
    reader = Reader(one, PATH, ASK).read(5)
    disks.full.add("run")
    event = str(reader.read(5).last)

    async def leave() -> None:
        one.proxy.streams.hand_over_all()
        one.proxy.drain()
        one.proxy.abandon()

    asyncio.run_coroutine_threadsafe(leave(), one.loop).result(DEADLINE)
    reader.all()
    disks.full.clear()
    eventually(lambda: Reader(two, PATH, {}, event).status == 404, "nobody to go on with it")
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    assert "error" in reader.events[-1]


def test_a_stream_that_cannot_be_recorded_is_not_taken_up(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the death of who took it up its record would have it end with what was delivered when it was let go of."""
    one, two = front.start(0, pace=0.03), front.start(1)
    disks = FullDisks(monkeypatch)
    first = Reader(one, PATH, ASK).read(9)
    first.leave()

    async def let_go() -> bool:
        journals = one.proxy.streams.journals
        return all(one.proxy.streams.hand_over(each, LEFT) for each in list(journals.values()) if each.detached_at)

    eventually(lambda: all(each.detached_at for each in one.proxy.streams.journals.values()), "no reader")
    assert asyncio.run_coroutine_threadsafe(let_go(), one.loop).result(DEADLINE)
    disks.full.add("run")
    refused = Reader(two, PATH, {}, first.last)
    assert refused.status == 503 and not two.proxy.requests and not two.proxy.ledger.entries
    disks.full.clear()
    assert told(first, Reader(two, PATH, {}, first.last).all()) == TEXT
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")


def test_a_row_that_is_written_after_its_stream_is_given_up_does_not_stay_open(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the usage log has no room its proxy lets go of the stream, whose record is then lost."""
    one = front.start(0, pace=0.03)
    disks = FullDisks(monkeypatch)
    disks.full.add("usage")
    reader = Reader(one, PATH, ASK).read(9)
    reader.leave()

    async def let_go() -> None:
        (journal,) = one.proxy.streams.journals.values()
        assert one.proxy.streams.hand_over(journal, LEFT)

    eventually(lambda: all(each.detached_at for each in one.proxy.streams.journals.values()), "no reader")
    asyncio.run_coroutine_threadsafe(let_go(), one.loop).result(DEADLINE)
    assert one.proxy.streams.records is not None
    for name in one.proxy.streams.records.names():
        record = one.proxy.streams.records.claim(name)
        assert record is not None
        record.end()
    disks.full.clear()
    eventually(lambda: [row["state"] for row in front.rows()] == ["lost(proxy)"], "a closed row")
