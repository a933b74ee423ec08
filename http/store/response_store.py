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

from pontil.http.schema.json_body import parse
from pontil.runtime.errors import PontilError, RequestError
from pontil.runtime.foundation.file_faults import may_pass

APPLICATION_ID = 0x706E7473
VERSION = 2
LOCK_SECONDS = 1.0
MOST_ROWS = 1 << 20
# Of a conversation that is read again, in turns and in bytes of items: a request's body holds no more.
MOST_TURNS = 4096
MOST_LOADED = 8 << 20
# Expired responses are removed this many at a time, with each one that is added.
EXPIRED_AT_ONCE = 64
# Threads before one that are used with it.
MOST_FORKS = 64

# Responses that follow each other are a thread, of which `last` is the newest; one that follows an earlier one begins
# another, whose `parent` is that thread. Its use is kept once for all of them, so that a turn costs the same however
# many come before it. The sums of each caller are kept by triggers, so that no addition counts all rows.
SCHEMA = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, caller TEXT NOT NULL, thread TEXT NOT NULL, previous TEXT, bytes INTEGER NOT NULL,
    items INTEGER NOT NULL, head TEXT NOT NULL, input TEXT NOT NULL, output TEXT NOT NULL
);
CREATE INDEX by_thread ON responses (thread);
CREATE TABLE threads (
    id TEXT PRIMARY KEY, caller TEXT NOT NULL, parent TEXT, last TEXT, used REAL NOT NULL
);
CREATE INDEX by_use ON threads (used);
CREATE INDEX by_caller ON threads (caller, used);
CREATE TABLE sums (caller TEXT PRIMARY KEY, rows INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER added AFTER INSERT ON responses BEGIN
    INSERT INTO sums VALUES (new.caller, 1, new.bytes)
        ON CONFLICT (caller) DO UPDATE SET rows = rows + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER removed AFTER DELETE ON responses BEGIN
    UPDATE sums SET rows = rows - 1, bytes = bytes - old.bytes WHERE caller = old.caller;
    DELETE FROM sums WHERE caller = old.caller AND rows = 0;
    DELETE FROM threads WHERE id = old.thread AND NOT EXISTS (SELECT 1 FROM responses WHERE thread = old.thread);
END;
"""
USE = """
WITH RECURSIVE chain (id, place) AS (
    SELECT :id, 0 UNION ALL
    SELECT threads.parent, place + 1 FROM chain JOIN threads USING (id)
        WHERE threads.parent IS NOT NULL AND place < :most
)
UPDATE threads SET used = :now WHERE id IN (SELECT id FROM chain)
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
    after the last use of its thread, or of one that began there; where they are too many, the oldest of the caller that
    has most go first.

    Its methods block: call them in a thread, one at a time. They raise sqlite3.Error if the file fails. Where the disk
    is full or fails at the beginning, the file is opened by the first of them that can.
    """

    def __init__(
        self, path: Path, most_bytes: int, ttl: float, clock: Callable[[], float] = lambda: time.time()
    ) -> None:
        self.most_bytes, self.ttl, self.clock = most_bytes, ttl, clock
        self.path = path
        self.file: sqlite3.Connection | None = None
        with suppress(sqlite3.Error), self.database:
            self.remove_expired(MOST_ROWS)
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
        head, input_json, output = (written(part) for part in (response.head, response.input, response.output))
        size = len(head) + len(input_json) + len(output)
        if size > self.most_bytes:
            return False
        items = len(input_json) + len(output)
        with self.database:
            thread = self.thread_for(caller, response)
            row = (response.id, caller, thread, response.previous, size, items, head, input_json, output)
            self.database.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self.database.execute(USE, {"id": thread, "most": MOST_FORKS, "now": self.clock()})
            self.remove_expired(EXPIRED_AT_ONCE)
            self.make_room()
        return True

    def thread_for(self, caller: str, response: KeptResponse) -> str:
        """Return the thread of a new response: that of the one before it, if that is the last of it, else its own."""
        before = None if response.previous is None else self.row(caller, response.previous, "thread, last")
        if before is not None and before[1] == response.previous:
            self.database.execute("UPDATE threads SET last = ? WHERE id = ?", (response.id, before[0]))
            return str(before[0])
        row = (response.id, caller, None if before is None else before[0], response.id, self.clock())
        self.database.execute("INSERT INTO threads VALUES (?, ?, ?, ?, ?)", row)
        return response.id

    def remove_expired(self, most: int) -> None:
        query = """DELETE FROM responses WHERE id IN (SELECT responses.id FROM threads
            JOIN responses ON thread = threads.id WHERE used <= ? ORDER BY used LIMIT ?)"""
        self.database.execute(query, (self.since, most))

    def make_room(self) -> None:
        """Remove responses that are too many."""
        while self.is_too_full():
            (caller,) = self.database.execute("SELECT caller FROM sums ORDER BY bytes DESC LIMIT 1").fetchone()
            oldest = "SELECT id FROM threads WHERE caller = ? ORDER BY used, rowid LIMIT 1"
            first = f"SELECT min(rowid) FROM responses WHERE thread = ({oldest})"
            self.database.execute(f"DELETE FROM responses WHERE rowid = ({first})", (caller,))

    def is_too_full(self) -> bool:
        rows, size = self.database.execute("SELECT total(rows), total(bytes) FROM sums").fetchone()
        return bool(rows > MOST_ROWS or size > self.most_bytes)

    def response(self, caller: str, name: str) -> bytes | None:
        """Return a response's JSON; None if there is none."""
        row = self.row(caller, name, "head, output")
        return None if row is None else written(read(row[0]) | {"output": read(row[1])}).encode()

    def outputs(self, caller: str, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return the items of the outputs of those responses that are there. Raises RequestError for too many."""
        texts: list[str] = []
        size = 0
        for name in names:
            (text,) = self.row(caller, name, "output") or ("[]",)
            size += len(text)
            if size > MOST_LOADED:
                raise too_long("input")
            texts.append(text)
        return [item for text in texts for item in read(text)]

    def row(self, caller: str, name: str, columns: str) -> tuple[Any, ...] | None:
        query = f"""SELECT {columns} FROM responses JOIN threads ON threads.id = thread
            WHERE responses.id = ? AND responses.caller = ? AND used > ?"""
        row: tuple[Any, ...] | None = self.database.execute(query, (name, caller, self.since)).fetchone()
        return row

    def conversation(self, caller: str, name: str, with_output: bool = True) -> list[dict[str, Any]] | None:
        """Return the items of a conversation from its beginning to a response's input, or its output. None if any
        response of it is missing: it would be another conversation. Raises RequestError for one that is too long."""
        parts = list[str]()
        size, turns, before = 0, 0, str(name)
        while before is not None:
            turn = self.row(caller, before, "previous, items, input, output")
            if turn is None:
                return None
            before, items, *texts = turn
            size, turns = size + items, turns + 1
            if turns > MOST_TURNS or size > MOST_LOADED:
                raise too_long("previous_response_id")
            parts += reversed(texts)
        return [item for text in reversed(parts if with_output else parts[1:]) for item in read(text)]

    def remove(self, caller: str, name: str) -> bool:
        """Return whether there was such a response. Those after it stay, and cannot be gone on from."""
        with self.database:
            if self.row(caller, name, "thread") is None:
                return False
            self.database.execute("DELETE FROM responses WHERE id = ?", (name,))
        return True

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
            prepare(database)
        except sqlite3.OperationalError:
            # Another proxy of the launch made the tables at the same time.
            database.rollback()
            prepare(database)
    except (PontilError, sqlite3.Error) as error:
        database.close()
        if isinstance(error, sqlite3.Error) and may_pass(error):
            raise
        raise PontilError(f"{path} cannot keep responses: {error}") from None
    return database


def prepare(database: sqlite3.Connection) -> None:
    with closing(database.cursor()) as cursor:
        mark, version, tables = (
            cursor.execute(query).fetchone()[0]
            for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if tables and (mark != APPLICATION_ID or version != VERSION):
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
