# SPDX-License-Identifier: Apache-2.0
"""One writer, one version, one row a request, closed rows never change, and a full disk is waited for."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from small_disk import filled, needed_disk
from usage_rows import BALANCED, PROXY, REQUEST, SHARE

from pontil.runtime.accounting import usage_file
from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.usage_file import FileWriter, UsageFile, open_to_read
from pontil.runtime.accounting.usage_tables import LOST, OPEN, LostProxy, LostRequest, TakenOver
from pontil.runtime.errors import UsageLogError


def states(path: Path) -> list[tuple[str, str, int]]:
    with closing(open_to_read(path)) as database:
        return database.execute("SELECT id, state, completion_tokens FROM requests ORDER BY id").fetchall()


def test_rows_are_written_again_until_they_are_closed(tmp_path: Path) -> None:
    file = UsageFile(tmp_path / "usage.db")
    for count in (1, 2):
        file.write([replace(REQUEST, state=OPEN, completion_tokens=count)])
    assert states(file.path) == [("mine-1", OPEN, 2)]
    file.write([REQUEST])
    file.write([replace(REQUEST, state=OPEN, completion_tokens=9), replace(REQUEST, completion_tokens=8)])
    assert states(file.path) == [("mine-1", "closed", 3)]
    file.close()


def test_what_a_proxy_left_open_is_lost_with_it(tmp_path: Path) -> None:  # A12
    for _ in range(3):
        file = UsageFile(tmp_path / "usage.db")
        file.write([replace(REQUEST, id="left", state=OPEN), *BALANCED])
        file.close()
    UsageFile(tmp_path / "usage.db").close()
    assert states(tmp_path / "usage.db") == [("left", LOST, 3), ("mine-1", "closed", 3)]
    with closing(open_to_read(tmp_path / "usage.db")) as database:
        # The proxy's own row was written after each opening; the last opening marked it as lost, too.
        assert database.execute("SELECT state FROM proxies").fetchall() == [(LOST,)]


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    file = UsageFile(tmp_path / "usage.db")
    with pytest.raises(UsageLogError, match="another proxy writes"):
        UsageFile(tmp_path / "usage.db")
    file.close()
    UsageFile(tmp_path / "usage.db").close()


def test_foreign_newer_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, " * 100)
    with closing(sqlite3.connect(tmp_path / "foreign")) as database:
        database.execute("CREATE TABLE mine (x)")
    UsageFile(tmp_path / "newer").close()
    with closing(sqlite3.connect(tmp_path / "newer")) as database:
        database.execute("PRAGMA user_version = 9")
    for name, said in (
        ("text", "not a"),
        ("foreign", "not a usage log"),
        ("newer", "version 9"),
        ("no/file", "No such"),
    ):
        with pytest.raises(UsageLogError, match=said):
            UsageFile(tmp_path / name)
    for name, said in (
        ("text", "not a"),
        ("foreign", "not a usage log"),
        ("newer", "version 9"),
        ("none", "there is no"),
    ):
        with pytest.raises(UsageLogError, match=said):
            open_to_read(tmp_path / name)
    assert (tmp_path / "text").read_text().startswith("this is no database")


def test_a_file_of_the_first_version_gets_the_new_columns(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    file = UsageFile(path)
    file.write(BALANCED)
    file.close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE requests DROP COLUMN computed_tokens")
        database.execute("ALTER TABLE shares DROP COLUMN computed")
        for name in ("stated", "heard_then", "missing", "heard", "booked", "late"):
            database.execute(f"ALTER TABLE workers DROP COLUMN prompt_{name}")
        database.execute("PRAGMA user_version = 1")
    with pytest.raises(UsageLogError, match="has version 1"):
        open_to_read(path)
    file = UsageFile(path)
    file.write([replace(REQUEST, id="new")])
    file.close()
    with closing(open_to_read(path)) as database:
        told = database.execute("SELECT id, computed_tokens FROM requests ORDER BY id").fetchall()
        assert told == [(REQUEST.id, None), ("new", REQUEST.computed_tokens)]
        assert database.execute("SELECT computed FROM shares").fetchall() == [(0,)]
        assert all(one.equal for one in audit(database) if "closed requests were" in one.text)


def test_a_group_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = UsageFile(tmp_path / "usage.db")
    with pytest.raises(sqlite3.Error):
        file.write([REQUEST, replace(PROXY, started=None)])  # type: ignore[arg-type]
    assert states(file.path) == []
    file.close()


def member(number: int, fleet: str = "launch", kept: tuple[str, ...] = ()) -> FileWriter:
    return FileWriter(f"proxy-{number}", f"proxy:{number}", fleet, lambda: kept)


def test_the_proxies_of_one_launch_write_together_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    with closing(UsageFile(path)) as file:
        file.write([replace(REQUEST, id="left", state=OPEN), replace(REQUEST, id="kept", state=OPEN)])
    with closing(UsageFile(path, member(0, kept=("kept",)))) as one, closing(UsageFile(path, member(1))) as two:
        one.write([replace(REQUEST, id="one", proxy="proxy-0", state=OPEN)])
        two.write([replace(REQUEST, id="two", proxy="proxy-1", state=OPEN)])
        assert [state for _, state, _ in states(path)] == [OPEN, LOST, OPEN, OPEN]
        for other in (FileWriter(), member(0, "another launch")):
            with pytest.raises(UsageLogError, match="another proxy writes"):
                UsageFile(path, other)
        two.write([LostProxy("proxy-0", '["kept"]'), LostRequest("kept")])
        assert {name: state for name, state, _ in states(path)} == {
            "kept": LOST, "left": LOST, "one": LOST, "two": OPEN,
        }  # fmt: skip
    with closing(UsageFile(path, member(0, "another launch"))):
        assert {name: state for name, state, _ in states(path)}["two"] == LOST


@pytest.mark.parametrize("fleet", [None, "launch"])
def test_whoever_writes_has_its_rows_synced(
    tmp_path: Path, fleet: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:  # A12
    """SQLite can be built so that it does not sync what is committed unless it is asked to."""
    connect = usage_file.connect

    def careless(*given: Any, **more: Any) -> sqlite3.Connection:
        made = connect(*given, **more)
        made.execute("PRAGMA synchronous = NORMAL")
        return made

    monkeypatch.setattr(usage_file, "connect", careless)
    for number in range(1 if fleet is None else 2):
        database = UsageFile(tmp_path / "usage.db", FileWriter(f"p-{number}", fleet=fleet)).database
        assert database is not None and database.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_a_request_that_can_be_continued_outlives_its_proxy(tmp_path: Path) -> None:  # A12
    path = tmp_path / "usage.db"
    with closing(UsageFile(path, member(0))) as one, closing(UsageFile(path, member(1))) as two:
        one.write([replace(REQUEST, id=name, proxy="proxy-0", state=OPEN) for name in ("kept", "lost")])
        two.write([LostProxy("proxy-0", '["kept"]')])
        assert [state for _, state, _ in states(path)] == [OPEN, LOST]
        two.write([replace(REQUEST, id="kept", proxy="proxy-1")])
        two.write([LostRequest("kept"), LostProxy("proxy-0", "[]")])
    assert states(path) == [("kept", "closed", 3), ("lost", LOST, 3)]


def test_who_takes_a_request_over_leaves_no_share_that_it_does_not_know(tmp_path: Path) -> None:  # A11
    """Such as that of an attempt that the dead proxy could not record. Shares of a closed request never change."""
    path = tmp_path / "usage.db"
    with closing(UsageFile(path, member(0))) as one, closing(UsageFile(path, member(1))) as two:
        request = replace(REQUEST, id="r", proxy="proxy-0", state=OPEN)
        known, unknown = (replace(SHARE, request="r", attempt=attempt) for attempt in (0, 1))
        one.write([request, known, unknown, replace(SHARE, request="other")])
        # In whichever order they wait, and however often that is written.
        own = replace(known, generated=2, proxy="proxy-0")
        two.write([own, TakenOver("r"), replace(request, proxy="proxy-1")])
        two.write([replace(REQUEST, id="r", proxy="proxy-1"), own])
        two.write([TakenOver("r")])
    with closing(open_to_read(path)) as database:
        found = database.execute("SELECT request, attempt, generated, proxy FROM shares ORDER BY request").fetchall()
    assert found == [("other", 0, SHARE.generated, None), ("r", 0, 2, "proxy-0")]


def test_two_that_start_at_once_prepare_a_file_once(tmp_path: Path) -> None:
    path, opened = tmp_path / "usage.db", list[UsageFile]()
    threads = [Thread(target=lambda n=n: opened.append(UsageFile(path, member(n)))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4
    for file in opened:
        file.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with needed_disk(tmp_path) as folder:
        yield folder


def test_a_new_file_on_a_full_disk_is_opened_once_there_is_room(disk: Path) -> None:  # A12
    with filled(disk):
        file = UsageFile(disk / "usage.db")
        with pytest.raises(sqlite3.Error):
            file.write([REQUEST])
    file.write([REQUEST])
    file.end()
    assert states(file.path) == [("mine-1", "closed", 3)]


@pytest.mark.parametrize("fleet", [None, "launch"])
def test_rows_of_before_a_full_disk_are_settled_once_there_is_room(disk: Path, fleet: str | None) -> None:  # A12
    """Those that their proxy left open, but for what the next proxy goes on with and has not written yet."""
    path = disk / "usage.db"
    file = UsageFile(path)
    rows = [replace(REQUEST, id=name, proxy="gone", state=OPEN) for name in ("kept", "left", "taken-over")]
    file.write([*rows, replace(PROXY, incarnation="gone")])
    file.close()
    with filled(disk):
        file = UsageFile(path, FileWriter("next", "proxy", fleet, lambda: ("kept",)))
        with pytest.raises(sqlite3.Error):
            file.write([REQUEST])
    assert [state for _, state, _ in states(path)] == [OPEN] * 3
    file.write([replace(REQUEST, id="taken-over", proxy="next", completion_tokens=9)])
    assert states(path) == [("kept", OPEN, 3), ("left", LOST, 3), ("taken-over", "closed", 9)]
    file.close()


def test_a_proxy_joins_the_others_once_there_is_room(disk: Path) -> None:  # A12
    path = disk / "usage.db"
    with closing(UsageFile(path, member(0))) as one:
        one.write([replace(REQUEST, id="one", proxy="proxy-0", state=OPEN)])
        with filled(disk):
            two = UsageFile(path, member(1))
            with pytest.raises(UsageLogError, match="another proxy writes"):
                UsageFile(path, member(2, "another launch"))
            with pytest.raises(sqlite3.Error):
                two.write([replace(REQUEST, id="two", proxy="proxy-1", state=OPEN)])
        two.write([replace(REQUEST, id="two", proxy="proxy-1", state=OPEN)])
        assert [state for _, state, _ in states(path)] == [OPEN, OPEN]
        two.close()


def test_the_last_of_a_launch_leaves_no_row_open(tmp_path: Path) -> None:  # A12
    path = tmp_path / "usage.db"
    one, two = UsageFile(path, member(0, kept=("kept",))), UsageFile(path, member(1, kept=("kept",)))
    one.write([replace(REQUEST, id="kept", proxy="killed", state=OPEN), replace(PROXY, incarnation="killed")])
    one.end()
    assert states(path) == [("kept", OPEN, 3)], "another one may go on with it"
    two.end()
    assert states(path) == [("kept", LOST, 3)]
    with closing(open_to_read(path)) as database:
        assert {state for (state,) in database.execute("SELECT state FROM proxies")} == {LOST}


def test_the_last_one_that_has_a_successor_leaves_what_that_goes_on_with(tmp_path: Path) -> None:  # A12
    """It restarts while all others are down."""
    path = tmp_path / "usage.db"
    last = UsageFile(path, replace(member(2), left=lambda: ("left",)))
    last.write([replace(REQUEST, id=name, proxy="killed", state=OPEN) for name in ("left", "lost")])
    last.end()
    assert states(path) == [("left", OPEN, 3), ("lost", LOST, 3)]
