# SPDX-License-Identifier: Apache-2.0
"""The client of a batch among others: some seeds have one, made at any moment, whose lines are each answered and billed
once whatever happens to the processes that run it."""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from http_reader import HttpReader
from request_connections import AnswerTaker, Dialer, PendingAnswer
from virtual_time import SeededWorld

if TYPE_CHECKING:
    from seed_run import SeedRun

# Share of seeds with a batch, its most lines, and the seconds between two looks at it.
SHARE, MOST_LINES, LOOK = 0.25, 30, 1.0
PATH, KEY = "/v1/messages/batches", "key-of-cleo"
PREFIX = "msgbatch_"


class BatchClient(AnswerTaker):
    """The client of one batch: it asks until the batch is made, and then until it has ended and its results are here.
    Its `results` are those by custom_id."""

    def __init__(self, world: SeededWorld, dialer: Dialer, ended: Callable[[], None]) -> None:
        self.world, self.dialer, self.ended = world, dialer, ended
        self.chance = world.random("batch")
        self.lines = self.chance.randrange(3, MOST_LINES)
        self.name: str | None = None
        self.results: Counter[tuple[str, str]] | None = None
        self.pending: PendingAnswer | None = None
        self.is_planned = self.is_over = False

    def plan(self, begin: float, seconds: float, joins: Callable[[], None]) -> None:
        if self.chance.random() < SHARE:
            self.is_planned = True
            joins()
            self.world.at(begin + self.chance.random() * seconds, self.make)

    @property
    def body(self) -> dict[str, Any]:
        def params(number: int) -> dict[str, Any]:
            turn = {"role": "user", "content": f"line {number}"}
            # One line of seven is wrong.
            return {"max_tokens": 1 + number % 20, "messages": [turn], "temperature": 9 if number % 7 == 6 else 0}

        return {"requests": [{"custom_id": f"l{n}", "params": params(n)} for n in range(self.lines)]}

    def make(self) -> None:
        self.ask("POST", PATH, json.dumps(self.body).encode())

    def ask(self, method: str, path: str, body: bytes = b"") -> None:
        connection = self.dialer.dial(5000)
        if connection is None:
            self.look_later()
            return
        lines = f"host: localhost\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n"
        head = f"{method} {path} HTTP/1.1\r\n{lines}content-type: application/json\r\n\r\n"
        self.pending = connection.ask(self, head.encode() + body)

    def look_later(self) -> None:
        self.world.after(LOOK, self.look)

    def look(self) -> None:
        if self.name is None:
            self.make()
        elif self.is_over:
            self.ask("GET", f"{PATH}/{self.name}/results")
        else:
            self.ask("GET", f"{PATH}/{self.name}")

    # The parts of an AnswerTaker.

    def disconnected(self) -> None:
        self.look_later()

    def answered(self, reader: HttpReader) -> None:
        if reader.status != 200:
            if reader.status not in (429, 503):
                self.world.violate(f"a batch has an answer: {reader.status} {bytes(reader.body)[:200]!r}")
            self.look_later()
        elif self.name is None:
            self.name = json.loads(reader.body)["id"]
            self.look_later()
        elif not self.is_over:
            self.is_over = json.loads(reader.body)["processing_status"] == "ended"
            self.look_later()
        else:
            told = map(json.loads, bytes(reader.body).splitlines())
            self.results = Counter((line["custom_id"], line["result"]["type"]) for line in told)
            self.ended()


def each_line_has_one_outcome_and_one_bill(run: "SeedRun") -> Iterator[str]:
    """Each line of the batch has one result of its kind, and each that was answered one billed row."""
    batch = run.batch
    if batch.results is None:
        if batch.is_planned:
            yield f"the batch {batch.name} has no results"
        return
    kinds = {f"l{n}": "errored" if n % 7 == 6 else "succeeded" for n in range(batch.lines)}
    if batch.results != Counter(kinds.items()):
        yield f"the batch {batch.name} of {batch.lines} lines has {batch.results}"
    if run.world.disks.lost_rows:
        return
    bills = billed(run.folder / "usage", f"{batch.name}-")
    expected = {f"{batch.name}-{n + 1}": 1 for n in range(batch.lines) if n % 7 != 6}
    if bills != expected:
        yield f"the batch {batch.name} is billed {bills}"


def billed(path: Path, names: str) -> Counter[str]:
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT name FROM requests WHERE instr(name, ?) = 1 AND delivered > 0"
        return Counter(name for (name,) in database.execute(query, (names,)))


def of_batches(name: str) -> bool:
    """Return whether a row is one of a batch's line, which nobody asks for by its name."""
    return name.startswith((PREFIX, "batch_"))
