# SPDX-License-Identifier: Apache-2.0
"""The usage log's file: SQLite in WAL mode. Only this module and its readers' queries know the tables.

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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pontil.runtime.accounting.counts import EMBEDDED
from pontil.runtime.errors import UsageLogError

# "pont" in ASCII: marks a usage log in SQLite's header.
APPLICATION_ID = 0x706F6E74
VERSION = 4
OPEN, CLOSED, LOST = "open", "closed", "lost(proxy)"
# SQL: what was delivered, or answered by a vector, is billed.
BILLED = f"(delivered > 0 OR finish IS '{EMBEDDED}')"
# Seconds that a write waits for another program that reads or locks the file.
BUSY = 1.0
# The same where several proxies write, and how long one waits at its start for another that prepares the file.
SHARED_BUSY = 5.0
TURN = 0.02
# SQLite's integers are signed, of 64 bits. A stated count is bounded, but sums of many are not.
LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request. `arrived` is in seconds since 1970; the other times count from there, None while unknown.
    `generated` is what the workers state, else what came from them. `name` is the X-Request-Id, `finish` has a reason
    for each choice. `queue_seconds` and `computed_tokens` are stated by the worker that computed the prompt.
    `stage` is set for what a further stage of a model did for a request, whose id this one begins with."""

    id: str
    proxy: str
    name: str
    api_key: str
    model: str
    route: str
    state: str
    finish: str | None
    choices: int
    attempts: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    generated: int
    delivered: int
    discarded: int
    arrived: float
    queue_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float | None
    computed_tokens: int | None
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class ShareRow:
    """The work of one worker for one request: ids generated, and prompt tokens computed. `proxy` is set where another
    proxy than the request's own had them computed."""

    request: str
    worker: str
    attempt: int
    phase: str
    generated: int
    computed: int
    proxy: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker's Book with one proxy; `stated` is its count since it first registered there, as stated last, or None.
    The `prompt_` fields are the same for prompt tokens."""

    worker: str
    proxy: str
    name: str
    before: int | None
    stated: int | None
    heard_then: int
    missing: int
    heard: int
    booked: int
    late: int
    unheard: int
    prompt_stated: int | None
    prompt_heard_then: int
    prompt_missing: int
    prompt_heard: int
    prompt_booked: int
    prompt_late: int


@dataclass(frozen=True, slots=True)
class ProxyRow:
    """One run of a proxy, and its ledger's sums over closed requests. Proxies of one `name` follow each other; those of
    one `fleet` write to the file together."""

    incarnation: str
    started: float
    state: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    generated: int
    delivered: int
    discarded: int
    name: str | None = None
    fleet: str | None = None


@dataclass(frozen=True, slots=True)
class LostProxy:
    """The end of a proxy without a last word. Its open requests are lost, but for those `kept`: a JSON list of ids."""

    incarnation: str
    kept: str


@dataclass(frozen=True, slots=True)
class LostRequest:
    """The end of an open request that nobody continues any more."""

    id: str


UsageRow = RequestRow | ShareRow | WorkerRow | ProxyRow
# Rows that a proxy posts about others.
LostRow = LostProxy | LostRequest
Posted = UsageRow | LostRow

TABLES: dict[type[UsageRow], tuple[str, tuple[str, ...]]] = {
    RequestRow: ("requests", ("id",)),
    ShareRow: ("shares", ("request", "worker", "attempt")),
    WorkerRow: ("workers", ("worker", "proxy")),
    ProxyRow: ("proxies", ("incarnation",)),
}
SQL_TYPES = {"str": "TEXT", "int": "INTEGER", "float": "REAL"}


def create(kind: type[UsageRow]) -> str:
    name, key = TABLES[kind]
    return f"CREATE TABLE {name} ({', '.join(columns_of(kind).values())}, PRIMARY KEY ({', '.join(key)}))"


def columns_of(kind: type[UsageRow]) -> dict[str, str]:
    """Return each column's declaration. A column added later is 0, or unknown, in older rows."""
    columns = {}
    for each in fields(kind):
        plain, _, optional = type_name(each.type).partition(" | ")
        default = " DEFAULT 0" if plain == "int" else ""
        columns[each.name] = f"{each.name} {SQL_TYPES[plain]}{'' if optional else ' NOT NULL' + default}"
    return columns


def type_name(declared: Any) -> str:
    return declared.__name__ if isinstance(declared, type) else str(declared)


def upsert(kind: type[UsageRow]) -> str:
    name, key = TABLES[kind]
    columns = [each.name for each in fields(kind)]
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in key)
    guard = f" WHERE {name}.state = '{OPEN}'" if kind is RequestRow else ""
    return (
        f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}{guard}"
    )


LOSE = f"UPDATE requests SET state = '{LOST}', finish = '{LOST}' WHERE state = '{OPEN}'"
# SQL: one statement or more for each kind of row, and which of its fields each of them takes.
STATEMENTS: dict[type[Posted], tuple[tuple[str, tuple[int, ...]], ...]] = {
    **{kind: ((upsert(kind), tuple(range(len(fields(kind))))),) for kind in TABLES},
    LostProxy: (
        (f"{LOSE} AND proxy = ? AND id NOT IN (SELECT value FROM json_each(?))", (0, 1)),
        (f"UPDATE proxies SET state = '{LOST}' WHERE state = '{OPEN}' AND incarnation = ?", (0,)),
    ),
    LostRequest: ((f"{LOSE} AND id = ?", (0,)),),
}


@dataclass(frozen=True, slots=True)
class FileWriter:
    """A proxy that writes to the file: alone, or with the others of its `fleet`. The open rows of the requests `kept`
    stay open, whoever began them."""

    incarnation: str = "-"
    name: str | None = None
    fleet: str | None = None
    kept: Collection[str] = ()

    @property
    def row(self) -> ProxyRow:
        """The row of a proxy that begins."""
        return ProxyRow(
            self.incarnation, time.time(), OPEN, 0, 0, 0, 0, 0, 0, 0, name=self.name, fleet=self.fleet
        )  # fmt: skip


ALONE = FileWriter()


class UsageFile:
    """A usage log open for writing. Raises UsageLogError for a file that is not one, is newer, or has another
    writer."""

    def __init__(self, path: Path, writer: FileWriter = ALONE) -> None:
        self.path, self.writer = path, writer
        try:
            self.lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageLogError(f"the usage log {path} cannot be opened: {error.strerror}") from None
        try:
            is_first = self.take_turn()
            self.database = connect(path, patience=BUSY if writer.fleet is None else SHARED_BUSY)
            if is_first:
                self.prepare()
            else:
                self.check_fleet()
            if writer.fleet is not None:
                self.write([writer.row])
                fcntl.flock(self.lock, fcntl.LOCK_SH)
        except BlockingIOError:
            os.close(self.lock)
            raise UsageLogError(taken(path)) from None
        except (sqlite3.Error, UsageLogError) as error:
            os.close(self.lock)
            if isinstance(error, UsageLogError):
                raise
            raise UsageLogError(f"the usage log {path} cannot be used: {error}") from None

    def take_turn(self) -> bool:
        """Lock the file: return True while nobody else has it, False with the others of a fleet. Raise BlockingIOError
        if it is another's."""
        deadline, pause = time.monotonic() + SHARED_BUSY, threading.Event()
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self.writer.fleet is None:
                    raise
            else:
                return True
            try:
                fcntl.flock(self.lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                pause.wait(TURN)
            else:
                return False

    def check_fleet(self) -> None:
        """Raise UsageLogError if those who write to the file are of another launch: the first of a fleet leaves no
        other's row open."""
        check_version(self.database, self.path)
        theirs = "SELECT count(*) FROM proxies WHERE state = ? AND fleet IS NOT ?"
        if self.database.execute(theirs, (OPEN, self.writer.fleet)).fetchone()[0]:
            raise UsageLogError(taken(self.path))

    def prepare(self) -> None:
        """Create the tables of a new file, and close the rows that an earlier proxy left open."""
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        if self.database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            with self.database:
                self.database.execute("BEGIN IMMEDIATE")
                for kind in TABLES:
                    self.database.execute(create(kind))
                self.database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self.database.execute(f"PRAGMA user_version = {VERSION}")
        if check_version(self.database, self.path) < VERSION:
            self.upgrade()
        with self.database:
            self.database.execute(
                f"{LOSE} AND id NOT IN (SELECT value FROM json_each(?))", (json.dumps(list(self.writer.kept)),)
            )
            self.database.execute("UPDATE proxies SET state = ? WHERE state = ?", (LOST, OPEN))

    def upgrade(self) -> None:
        """Add the columns that an older file lacks."""
        with self.database:
            self.database.execute("BEGIN IMMEDIATE")
            for kind, (name, _) in TABLES.items():
                there = {row[1] for row in self.database.execute(f"PRAGMA table_info({name})")}
                for column, declared in columns_of(kind).items():
                    if column not in there:
                        self.database.execute(f"ALTER TABLE {name} ADD COLUMN {declared}")
            self.database.execute(f"PRAGMA user_version = {VERSION}")

    def write(self, rows: Iterable[Posted]) -> None:
        """Write all of the rows or none; they are on the disk on return. Raise sqlite3.Error."""
        by_kind: dict[type[Posted], list[Sequence[Any]]] = {}
        for row in rows:
            by_kind.setdefault(type(row), []).append([held(value) for value in astuple(row)])
        with self.database:
            for kind, values in by_kind.items():
                for statement, places in STATEMENTS[kind]:
                    self.database.executemany(statement, [[row[place] for place in places] for row in values])

    def close(self) -> None:
        """Close the database, then release the lock: closing any descriptor of the file would end SQLite's own locks on
        it."""
        self.database.close()
        os.close(self.lock)


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
    except sqlite3.DatabaseError:
        ours, version = False, 0
    if not ours:
        raise UsageLogError(f"{path} is not a usage log of pontil: name another file")
    if not 1 <= version <= VERSION:
        raise UsageLogError(
            f"the usage log {path} has version {version} and this pontil writes version {VERSION}: name another file"
        )
    return int(version)
