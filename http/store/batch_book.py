# SPDX-License-Identifier: Apache-2.0
"""The files and batches of all callers, in a folder beside the usage log (docs/decisions/106).

The folder has a database of what was uploaded and asked for, and the contents as files, named by their ids. What became
of each line is in the usage log, together with its bill: of what stands in a batch's files only that counts which the
usage log names.
"""

import os
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.errors import PontilError, RequestError, UsageLogError
from pontil.runtime.foundation.file_faults import may_pass
from pontil.runtime.proxy.siblings.leases import Lease

# "pobt" in ASCII: marks the database in SQLite's header.
APPLICATION_ID = 0x706F6274
VERSION = 1
LOCK_SECONDS = 5.0
DATABASE, LEASE = "batches.db", "runner"
# The kinds of a batch's files.
OUTPUT, ERRORS, NOWHERE = "output", "errors", ""
# Outcomes of lines.
DONE, ERRORED, CANCELLED, EXPIRED, REVOKED = "done", "errored", "cancelled", "expired", "revoked"
# States of batches.
RUNNING, CANCELLING, COMPLETED, FAILED = "in_progress", "cancelling", "completed", "failed"
UNFINISHED = (RUNNING, CANCELLING)
OPENAI, MESSAGES = "openai", "messages"
UPLOADED, MADE = "batch", "batch_output"


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file that was uploaded, or that is written for a `batch`, of which it has what the `kind` says. `size` and
    `lines` are of an uploaded one."""

    id: str
    caller: str
    name: str
    purpose: str
    size: int
    lines: int
    created: int
    batch: str | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch: its `lines` of the file `input` are asked at the `endpoint`, in the `api`'s form, within `window`
    seconds, as requests of its caller with this `weight`. Times are in seconds since 1970. `metadata` is JSON."""

    id: str
    caller: str
    api: str
    endpoint: str
    input: str
    output: str
    errors: str
    lines: int
    window: int
    weight: float
    created: int
    metadata: str
    state: str = RUNNING
    cancelled: int | None = None
    ended: int | None = None

    @property
    def expires(self) -> int:
        return self.created + self.window

    @property
    def is_over(self) -> bool:
        return self.state not in UNFINISHED


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The outcomes of a batch's lines: counts by outcome, and the bytes of its files that count, by kind."""

    counts: Mapping[str, int]
    places: Mapping[str, int]

    @property
    def settled(self) -> int:
        return sum(self.counts.values())


Row = TypeVar("Row", FileRow, BatchRow)
TABLES: dict[type[Any], str] = {FileRow: "files", BatchRow: "batches"}
SCHEMA = "".join(
    f"CREATE TABLE {name} ({', '.join(field.name for field in fields(kind))}, PRIMARY KEY (id));\n"
    f"CREATE INDEX {name}_of ON {name} (caller, created);\n"
    for kind, name in TABLES.items()
)
PROGRESS = "SELECT outcome, kind, count(*), max(place) FROM batch_lines WHERE batch = ? GROUP BY outcome, kind"


class BatchBook:
    """The files and batches in a `folder`, whose lines' outcomes are in the `usage_log`.

    Its methods block: call them in a thread, one at a time. They raise sqlite3.Error, OSError or UsageLogError where a
    disk fails or is full."""

    def __init__(self, folder: Path, usage_log: Path) -> None:
        self.folder, self.usage_log = folder, usage_log
        self.file: sqlite3.Connection | None = None
        self.lease: Lease | None = None

    @property
    def database(self) -> sqlite3.Connection:
        self.file = self.file or opened(self.folder)
        return self.file

    def path_of(self, name: str) -> Path:
        return self.folder / name

    def create(self, name: str) -> int:
        """Make a file of this id; return its descriptor."""
        self.database  # noqa: B018  # which makes the folder
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.path_of(name), flags, 0o600)

    def to_run(self) -> list[BatchRow]:
        """Return the batches that are to be run here: none while another proxy has the lease of all, which is taken
        where it is free."""
        self.database  # noqa: B018  # which makes the folder
        self.lease = self.lease or Lease.take(self.path_of(LEASE), os.O_CREAT)
        return [] if self.lease is None else self.unfinished()

    def leave(self) -> None:
        """Let another proxy run the batches."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None

    def add(self, *rows: FileRow | BatchRow) -> None:
        """Add these rows, or none."""
        with self.database as database:
            for row in rows:
                database.execute(
                    f"INSERT INTO {TABLES[type(row)]} VALUES ({', '.join('?' * len(fields(row)))})", astuple(row)
                )

    def kept(self) -> dict[str, int]:
        """Return the bytes of the uploaded files of each caller."""
        return dict(self.database.execute("SELECT caller, sum(size) FROM files GROUP BY caller"))

    def one(self, kind: type[Row], caller: str, name: str) -> Row | None:
        query = f"SELECT * FROM {TABLES[kind]} WHERE id = ? AND caller = ?"
        row = self.database.execute(query, (name, caller)).fetchone()
        return None if row is None else kind(*row)

    def listed(
        self, kind: type[Row], caller: str, where: Mapping[str, str], newest_first: bool, page: "ListPage"
    ) -> tuple[list[Row], bool]:
        """Return a page of a caller's rows with these values, and whether there are more. Raises RequestError (404) for
        a page beside a row that is not there."""
        conditions: list[str] = ["caller = ?"]
        values: list[str] = [caller]
        for column, value in where.items():
            conditions.append(f"{column} = ?")
            values.append(value)
        backwards = page.before is not None
        if (anchor := page.before if backwards else page.after) is not None:
            row = self.one(kind, caller, anchor)
            if row is None:
                raise RequestError(f"there is no {anchor!r:.100} in this list", status=404, param=page.anchor_name)
            conditions.append(
                f"rowid {'<' if newest_first != backwards else '>'} (SELECT rowid FROM {TABLES[kind]} WHERE id = ?)"
            )
            values.append(anchor)
        order = "DESC" if newest_first != backwards else "ASC"
        query = f"SELECT * FROM {TABLES[kind]} WHERE {' AND '.join(conditions)} ORDER BY rowid {order} LIMIT ?"
        found = [kind(*row) for row in self.database.execute(query, (*values, page.limit + 1))]
        rows = found[: page.limit]
        return rows[::-1] if backwards else rows, len(found) > page.limit

    def unfinished(self) -> list[BatchRow]:
        """Return the batches that are to be run, the oldest first."""
        query = f"SELECT * FROM batches WHERE state IN ({', '.join('?' * len(UNFINISHED))}) ORDER BY rowid"
        return [BatchRow(*row) for row in self.database.execute(query, UNFINISHED)]

    def pending_lines(self) -> int:
        """Return how many lines of all batches have no outcome."""
        return sum(batch.lines - self.progress(batch.id).settled for batch in self.unfinished())

    def progress(self, batch: str) -> BatchProgress:
        counts: dict[str, int] = {}
        places: dict[str, int] = {OUTPUT: 0, ERRORS: 0}
        for outcome, kind, count, place in self.settled(PROGRESS, batch):
            counts[outcome] = counts.get(outcome, 0) + count
            places[kind] = max(places.get(kind, 0), place)
        return BatchProgress(counts, places)

    def done_lines(self, batch: str) -> set[int]:
        return {line for (line,) in self.settled("SELECT line FROM batch_lines WHERE batch = ?", batch)}

    def settled(self, query: str, batch: str) -> Sequence[tuple[Any, ...]]:
        """Return what the usage log has of a batch's lines."""
        with closing(open_to_read(self.usage_log)) as log:
            return log.execute(query, (batch,)).fetchall()

    def size_of(self, file: FileRow) -> int:
        """Return the bytes of a file that count."""
        return file.size if file.batch is None else self.progress(file.batch).places.get(str(file.kind), 0)

    def read(self, file: FileRow, begin: int, most: int) -> bytes:
        """Return bytes of a file from a place on: none if it has no contents yet."""
        with suppress(FileNotFoundError), self.path_of(file.id).open("rb") as contents:
            contents.seek(begin)
            return contents.read(most)
        return b""

    def cancel(self, batch: BatchRow, now: int) -> BatchRow:
        """Note that a batch is to be cancelled, unless it is over by now."""
        with self.database as database:
            change = "UPDATE batches SET state = ?, cancelled = ? WHERE id = ? AND state = ?"
            database.execute(change, (CANCELLING, now, batch.id, RUNNING))
        return self.one(BatchRow, batch.caller, batch.id) or batch

    def end(self, batch: BatchRow, state: str, now: int) -> BatchRow:
        with self.database as database:
            database.execute("UPDATE batches SET state = ?, ended = ? WHERE id = ?", (state, now, batch.id))
        return replace(batch, state=state, ended=now)

    def users_of(self, file: FileRow) -> list[BatchRow]:
        """Return the batches that are not over and read a file or write it."""
        return [batch for batch in self.unfinished() if file.id in (batch.input, batch.output, batch.errors)]

    def remove(self, kind: type[FileRow] | type[BatchRow], names: Collection[str]) -> None:
        """Remove rows, and the contents of files."""
        with self.database as database:
            for name in names:
                database.execute(f"DELETE FROM {TABLES[kind]} WHERE id = ?", (name,))
        for name in names if kind is FileRow else ():
            self.path_of(name).unlink(missing_ok=True)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


@dataclass(frozen=True, slots=True)
class ListPage:
    """A wish for a page of a list: at most `limit` rows behind one or before one."""

    limit: int
    after: str | None = None
    before: str | None = None
    names: tuple[str, str] = ("after", "before")

    @property
    def anchor_name(self) -> str:
        return self.names[self.before is not None]


def opened(folder: Path) -> sqlite3.Connection:
    """Open the folder's database, or make both. Raises sqlite3.Error or OSError for a fault that may pass, PontilError
    for a folder that cannot be used."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / DATABASE
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        database = sqlite3.connect(path, timeout=LOCK_SECONDS, check_same_thread=False)
    except OSError as error:
        if may_pass(error):
            raise
        raise UsageLogError(f"the folder {folder} of batches cannot be used: {error.strerror}") from None
    try:
        prepare(database)
    except (PontilError, sqlite3.Error) as error:
        database.close()
        if isinstance(error, sqlite3.Error) and may_pass(error):
            raise
        raise UsageLogError(f"{path} cannot keep batches: {error}") from None
    return database


def prepare(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    # A batch that a client was told of is there after a power failure.
    database.execute("PRAGMA synchronous = FULL")
    database.execute("BEGIN IMMEDIATE")
    mark, version, tables = (
        database.execute(query).fetchone()[0]
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if tables and (mark != APPLICATION_ID or version != VERSION):
        raise PontilError("it is another program's file, or another version's: move it away")
    if not tables:
        for statement in SCHEMA.split(";\n"):
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {VERSION}")
    database.commit()
