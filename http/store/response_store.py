# SPDX-License-Identifier: Apache-2.0
"""Responses kept in a SQLite file, so that a conversation can go on after them."""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pontil.http.fields.json_body import parse
from pontil.runtime.errors import PontilError, RequestError
from pontil.runtime.foundation.file_faults import may_pass

APPLICATION_ID = 0x706E7473
VERSION = 1
LOCK_SECONDS = 1.0
MOST_ROWS = 1 << 20
# Of a conversation that is read again, in turns and in bytes of items: a request's body holds no more.
MOST_TURNS = 4096
MOST_LOADED = 8 << 20
# Expired responses are removed this many at a time, with each one that is added.
EXPIRED_AT_ONCE = 64

# The sums of each caller are kept by triggers, so that no addition counts all rows.
SCHEMA = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, caller TEXT NOT NULL, previous TEXT, used REAL NOT NULL, bytes INTEGER NOT NULL,
    items INTEGER NOT NULL, head TEXT NOT NULL, input TEXT NOT NULL, output TEXT NOT NULL
);
CREATE INDEX by_use ON responses (used);
CREATE INDEX by_caller ON responses (caller, used);
CREATE TABLE sums (caller TEXT PRIMARY KEY, rows INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER added AFTER INSERT ON responses BEGIN
    INSERT INTO sums VALUES (new.caller, 1, new.bytes)
        ON CONFLICT (caller) DO UPDATE SET rows = rows + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER removed AFTER DELETE ON responses BEGIN
    UPDATE sums SET rows = rows - 1, bytes = bytes - old.bytes WHERE caller = old.caller;
    DELETE FROM sums WHERE caller = old.caller AND rows = 0;
END;
"""
CHAIN = """
WITH RECURSIVE chain (id, previous, turn) AS (
    SELECT id, previous, 0 FROM responses WHERE id = :id AND caller = :caller AND used > :since
    UNION ALL
    SELECT older.id, older.previous, turn + 1 FROM chain JOIN responses AS older ON older.id = chain.previous
        WHERE older.caller = :caller AND older.used > :since AND turn < :most
)
"""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response: its JSON (`head`, without the output), its own `input` and its `output`."""

    id: str
    previous: str | None
    head: dict[str, Any]
    input: Sequence[dict[str, Any]]
    output: Sequence[dict[str, Any]]


class ResponseStore:
    """The responses of all callers; none sees another's. At most `most_bytes` are kept, none longer than `ttl` seconds
    after its last use; where they are too many, the oldest of the caller that has most go first.

    Its methods block: call them in a thread, one at a time. They raise sqlite3.Error if the file fails. Where the disk
    is full or fails at the beginning, the file is opened by the first of them that can.
    """

    def __init__(self, path: Path, most_bytes: int, ttl: float, clock: Callable[[], float] = time.time) -> None:
        self.most_bytes, self.ttl, self.clock = most_bytes, ttl, clock
        self.path = path
        self.file: sqlite3.Connection | None = None
        with suppress(sqlite3.Error), self.database:
            self.database.execute("DELETE FROM responses WHERE used <= ?", (self.since,))
            self.make_room()

    @property
    def database(self) -> sqlite3.Connection:
        """The open file. Raises sqlite3.Error while it cannot be opened, PontilError if it never can."""
        self.file = self.file or opened(self.path)
        return self.file

    @property
    def since(self) -> float:
        """The last use before which a response has expired."""
        return self.clock() - self.ttl

    def add(self, caller: str, response: KeptResponse) -> bool:
        """Keep a response; return False for one that is too large. It counts as a use of those before it."""
        head, own, output = (written(part) for part in (response.head, response.input, response.output))
        size = len(head) + len(own) + len(output)
        if size > self.most_bytes:
            return False
        items = len(own) + len(output)
        row = (response.id, caller, response.previous, self.clock(), size, items, head, own, output)
        with self.database:
            if response.previous is not None:
                self.use(caller, response.previous)
            self.database.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self.make_room()
        return True

    def use(self, caller: str, name: str) -> None:
        known = {"id": name, "caller": caller, "since": self.since, "most": MOST_TURNS, "now": self.clock()}
        self.database.execute(f"{CHAIN} UPDATE responses SET used = :now WHERE id IN (SELECT id FROM chain)", known)

    def make_room(self) -> None:
        """Remove expired responses, then those that are too many."""
        expired = "DELETE FROM responses WHERE id IN (SELECT id FROM responses WHERE used <= ? ORDER BY used LIMIT ?)"
        self.database.execute(expired, (self.since, EXPIRED_AT_ONCE))
        while self.is_too_full():
            (caller,) = self.database.execute("SELECT caller FROM sums ORDER BY bytes DESC LIMIT 1").fetchone()
            oldest = "SELECT id FROM responses WHERE caller = ? ORDER BY used, rowid LIMIT 1"
            self.database.execute(f"DELETE FROM responses WHERE id IN ({oldest})", (caller,))

    def is_too_full(self) -> bool:
        rows, size = self.database.execute("SELECT total(rows), total(bytes) FROM sums").fetchone()
        return bool(rows > MOST_ROWS or size > self.most_bytes)

    def response(self, caller: str, name: str) -> bytes | None:
        """Return a response's JSON; None if there is none."""
        row = self.row(caller, name, "head, output")
        return None if row is None else written(read(row[0]) | {"output": read(row[1])}).encode()

    def outputs(self, caller: str, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return the items of the outputs of those responses that are there. Raises RequestError for too many."""
        found: list[str] = []
        size = 0
        for name in names:
            (text,) = self.row(caller, name, "output") or ("[]",)
            size += len(text)
            if size > MOST_LOADED:
                raise too_long("input")
            found.append(text)
        return [item for text in found for item in read(text)]

    def row(self, caller: str, name: str, columns: str) -> tuple[str, ...] | None:
        asked = f"SELECT {columns} FROM responses WHERE id = ? AND caller = ? AND used > ?"
        row: tuple[str, ...] | None = self.database.execute(asked, (name, caller, self.since)).fetchone()
        return row

    def conversation(self, caller: str, name: str, with_output: bool = True) -> list[dict[str, Any]] | None:
        """Return the items of a conversation from its beginning to a response's input, or its output. None if any
        response of it is missing: it would be another conversation. Raises RequestError for one that is too long."""
        known = {"id": name, "caller": caller, "since": self.since, "most": MOST_TURNS}
        sums = "SELECT total(items), count(*), sum(chain.previous IS NULL) FROM chain JOIN responses USING (id)"
        size, turns, begun = self.database.execute(f"{CHAIN} {sums}", known).fetchone()
        if turns > MOST_TURNS or size > MOST_LOADED:
            raise too_long("previous_response_id")
        if not begun:
            return None
        kept = "SELECT input, output FROM chain JOIN responses USING (id) ORDER BY turn DESC"
        parts = [text for row in self.database.execute(f"{CHAIN} {kept}", known) for text in row]
        return [item for text in (parts if with_output else parts[:-1]) for item in read(text)]

    def remove(self, caller: str, name: str) -> bool:
        """Return whether there was such a response. Those after it stay, and cannot be gone on from."""
        with self.database:
            found = self.database.execute("DELETE FROM responses WHERE id = ? AND caller = ? AND used > ?",
                                          (name, caller, self.since))  # fmt: skip
        return found.rowcount > 0

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def opened(path: Path) -> sqlite3.Connection:
    """Open the file, or make it. Raises sqlite3.Error for a fault of the disk that may pass, PontilError for a file
    that cannot be used or is another program's."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        database = sqlite3.connect(path, timeout=LOCK_SECONDS, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        if may_pass(error):
            raise sqlite3.OperationalError(str(error)) from None
        raise PontilError(f"{path} cannot be opened: {error}") from None
    try:
        try:
            prepare(database, path)
        except sqlite3.OperationalError:
            # Another proxy of the launch made the tables at the same time.
            database.rollback()
            prepare(database, path)
    except (PontilError, sqlite3.Error) as error:
        database.close()
        if isinstance(error, sqlite3.Error) and may_pass(error):
            raise
        raise PontilError(f"{path} cannot keep responses: {error}") from None
    return database


def prepare(database: sqlite3.Connection, path: Path) -> None:
    with closing(database.cursor()) as cursor:
        mark, version, tables = (
            cursor.execute(asked).fetchone()[0]
            for asked in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if tables and (mark, version) != (APPLICATION_ID, VERSION):
            raise PontilError("it is another program's file, or another version's: name another one")
        cursor.execute("PRAGMA journal_mode = WAL")
        # A response that a power failure takes away is asked for again; the file stays whole.
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA secure_delete = ON")
        if not tables:
            cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            cursor.execute(f"PRAGMA user_version = {VERSION}")
            cursor.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")


def too_long(param: str) -> RequestError:
    says = f"{param} names more than is read again: begin a new conversation, with the last items as input"
    return RequestError(says, param=param)


def written(value: Any) -> str:
    """Return the JSON, a list's item by item, so that other threads run in between."""
    if not isinstance(value, list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return f"[{', '.join(json.dumps(item, ensure_ascii=False) for item in value)}]"


def read(text: str) -> Any:
    return parse(text.encode())
