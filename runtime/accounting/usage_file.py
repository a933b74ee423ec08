# SPDX-License-Identifier: Apache-2.0
"""The usage log's file: SQLite in WAL mode.

The proxies of one launch write to a file at a time, each in one transaction for each group of changes. A row may be
written any number of times: while its request is open the last version stands, and a closed row never changes. The open
rows of a proxy that is gone are closed as lost, but for those that another proxy may continue (docs/decisions/061).
"""

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pontil.runtime.accounting.removal import Removal
from pontil.runtime.accounting.usage_tables import (
    ALL_TABLES,
    LOSE,
    LOST,
    OPEN,
    STATEMENTS,
    VALUES,
    LostLeases,
    Posted,
    ProxyRow,
    RequestRow,
    TakenOver,
    columns_of,
    create,
)
from pontil.runtime.errors import UsageLogError
from pontil.runtime.foundation.file_faults import may_pass

# "pont" in ASCII: marks a usage log in SQLite's header.
APPLICATION_ID = 0x706F6E74
VERSION = 8
# Seconds that a write waits for another program that reads or locks the file.
BUSY = 1.0
# The same where several proxies write, and how long one waits at its start for another that prepares the file.
SHARED_BUSY = 5.0
TURN = 0.02
# SQLite's integers are signed, of 64 bits. A stated count is bounded, but sums of many are not.
LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class FileWriter:
    """A proxy that writes to the file: alone, or with the others of its `fleet`. When it opens the file, the open rows
    of the requests `kept` stay open, whoever began them; when it closes it as the last one, those `left` to a
    successor, and leases if it `has_successor`. Requests older than so many `days` are removed."""

    incarnation: str = "-"
    name: str | None = None
    fleet: str | None = None
    kept: Callable[[], Collection[str]] = tuple
    days: int | None = None
    left: Callable[[], Collection[str]] = tuple
    has_successor: Callable[[], bool] = bool

    @property
    def row(self) -> ProxyRow:
        """The row of a proxy that begins."""
        return ProxyRow(self.incarnation, time.time(), OPEN, 0, 0, 0, 0, 0, 0, 0, name=self.name, fleet=self.fleet)


ALONE = FileWriter()


class UsageFile:
    """A usage log to write to. Raises UsageLogError for a file that is not one, is newer, or has another writer. Where
    the disk is full or fails it is opened later, by the first `write` that can."""

    def __init__(self, path: Path, writer: FileWriter = ALONE) -> None:
        self.path, self.writer = path, writer
        self.lock: int | None = None
        self.database: sqlite3.Connection | None = None
        self.removal = None if writer.days is None else Removal(writer.days)
        with suppress(sqlite3.Error):
            self.opened(())

    def opened(self, own: Iterable[str]) -> sqlite3.Connection:
        """Return the database, opened whole or not at all. Open rows of the requests `own` stay open, too: they are
        about to be written. Raise sqlite3.Error for what may pass, UsageLogError for what does not."""
        if self.database is not None:
            return self.database
        try:
            with ExitStack() as undo:
                lock = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                undo.callback(os.close, lock)
                is_first = self.take_turn(lock)
                patience = BUSY if self.writer.fleet is None else SHARED_BUSY
                database = undo.enter_context(closing(connect(self.path, patience=patience)))
                # Each connection has its own, and how SQLite was built decides where nobody asks.
                database.execute("PRAGMA synchronous = FULL")
                if is_first:
                    self.prepare(database, own)
                else:
                    self.check_fleet(database)
                if self.writer.fleet is not None:
                    insert(database, [self.writer.row])
                    fcntl.flock(lock, fcntl.LOCK_SH)
                undo.pop_all()
        except BlockingIOError:
            raise UsageLogError(taken(self.path)) from None
        except OSError as error:
            if may_pass(error):
                raise sqlite3.OperationalError(error.strerror) from None
            raise UsageLogError(f"the usage log {self.path} cannot be opened: {error.strerror}") from None
        except sqlite3.Error as error:
            if may_pass(error):
                raise
            raise UsageLogError(f"the usage log {self.path} cannot be used: {error}") from None
        self.lock, self.database = lock, database
        return database

    def take_turn(self, lock: int) -> bool:
        """Lock the file: return True while nobody else has it, False with the others of a fleet. Raise BlockingIOError
        if it is another's."""
        deadline, pause = time.monotonic() + SHARED_BUSY, threading.Event()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self.writer.fleet is None:
                    raise
            else:
                return True
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                pause.wait(TURN)
            else:
                return False

    def check_fleet(self, database: sqlite3.Connection) -> None:
        """Raise UsageLogError if those who write to the file are of another launch: the first of a fleet leaves no
        other's row open."""
        check_version(database, self.path)
        theirs = "SELECT count(*) FROM proxies WHERE state = ? AND fleet IS NOT ?"
        if database.execute(theirs, (OPEN, self.writer.fleet)).fetchone()[0]:
            raise UsageLogError(taken(self.path))

    def prepare(self, database: sqlite3.Connection, own: Iterable[str]) -> None:
        """Create the tables of a new file, and close the rows that an earlier proxy left open."""
        database.execute("PRAGMA journal_mode = WAL")
        if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            with database:
                database.execute("BEGIN IMMEDIATE")
                for kind in ALL_TABLES:
                    database.execute(create(kind))
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {VERSION}")
        if check_version(database, self.path) < VERSION:
            upgrade(database)
        lose_all(database, {*self.writer.kept(), *own})

    def write(self, rows: Sequence[Posted]) -> None:
        """Write all of the rows or none; they are on the disk on return. Raise sqlite3.Error, or UsageLogError where
        the file could not be opened yet."""
        insert(self.opened(row.id for row in rows if isinstance(row, RequestRow)), rows)

    def tidy(self) -> None:
        """Remove a portion of the old requests, if there are any and it is time to. Raise sqlite3.Error."""
        if self.removal is not None and self.database is not None:
            self.removal.work(self.database, time.time())

    def end(self) -> None:
        """Close the file after a last word. The last of a fleet leaves no row open that nobody is left to continue."""
        if self.database is not None and self.lock is not None:
            with suppress(BlockingIOError, sqlite3.Error):
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lose_all(self.database, self.writer.left())
                if not self.writer.has_successor():
                    insert(self.database, [LostLeases("[]")])
        self.close()

    def close(self) -> None:
        """Close the database, then release the lock: closing any descriptor of the file would end SQLite's own locks on
        it."""
        if self.database is not None and self.lock is not None:
            self.database.close()
            os.close(self.lock)


def lose_all(database: sqlite3.Connection, kept_requests: Collection[str]) -> None:
    """Close the open rows of all proxies and of their requests, but for those `kept_requests`."""
    with database:
        database.execute(f"{LOSE} AND id NOT IN (SELECT value FROM json_each(?))", (json.dumps(list(kept_requests)),))
        database.execute("UPDATE proxies SET state = ? WHERE state = ?", (LOST, OPEN))


def upgrade(database: sqlite3.Connection) -> None:
    """Add the tables and columns that an older file lacks."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        for kind, (name, _) in ALL_TABLES.items():
            database.execute(create(kind))
            there = {row[1] for row in database.execute(f"PRAGMA table_info({name})")}
            for column, declaration in columns_of(kind).items():
                if column not in there:
                    database.execute(f"ALTER TABLE {name} ADD COLUMN {declaration}")
        database.execute(f"PRAGMA user_version = {VERSION}")


def insert(database: sqlite3.Connection, rows: Iterable[Posted]) -> None:
    """Write all of the rows or none. Raise sqlite3.Error."""
    by_kind: dict[type[Posted], list[Sequence[Any]]] = {TakenOver: []}
    for row in rows:
        by_kind.setdefault(type(row), []).append([held(value) for value in VALUES[type(row)](row)])
    with database:
        for kind, values in by_kind.items():
            for statement, places in STATEMENTS[kind]:
                database.executemany(statement, [[row[place] for place in places] for row in values])


def held(value: Any) -> Any:
    """Return a value that SQLite can store: a sum that is too large is cut (A5) rather than lost with its row."""
    return max(-LARGEST, min(value, LARGEST)) if type(value) is int else value


def taken(path: Path) -> str:
    return f"another proxy writes to the usage log {path}: give each its own file"


def connect(path: Path, read_only: bool = False, patience: float = BUSY) -> sqlite3.Connection:
    address = f"file:{quote(str(path.absolute()))}?mode={'ro' if read_only else 'rw'}"
    return sqlite3.connect(address, uri=True, timeout=patience, check_same_thread=False)


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a log that a proxy may be writing to. Raise UsageLogError where there is none."""
    if not path.is_file():
        raise UsageLogError(f"there is no usage log {path}: name the file that was given to launch as --usage-log")
    try:
        database = connect(path, read_only=True)
        version = check_version(database, path)
    except sqlite3.Error as error:
        raise UsageLogError(f"the usage log {path} cannot be read: {error}") from None
    if version < VERSION:
        raise UsageLogError(
            f"the usage log {path} has version {version}: launch with it as --usage-log brings it to version {VERSION}"
        )
    return database


def check_version(database: sqlite3.Connection, path: Path) -> int:
    """Return the version. Raise UsageLogError for a database of another program or of a newer version."""
    try:
        ours = database.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        version = database.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        ours, version = False, 0
    if not ours:
        raise UsageLogError(f"{path} is not a usage log of pontil: name another file")
    if not 1 <= version <= VERSION:
        raise UsageLogError(
            f"the usage log {path} has version {version} and this pontil writes version {VERSION}: name another file"
        )
    return int(version)
