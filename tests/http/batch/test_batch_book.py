# SPDX-License-Identifier: Apache-2.0
"""The book of a batch through crashes at any point: each line has one outcome and one bill."""

import json
import sqlite3
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from effort import examples

from pontil.http.batch import book_reader
from pontil.http.batch.input_lines import LineReader, count_lines
from pontil.http.store.batch_book import DONE, ERRORED, ERRORS, OUTPUT, BatchBook, FileRow
from pontil.http.store.outcome_files import OutcomeFiles
from pontil.runtime.accounting.usage_file import FileWriter, UsageFile, open_to_read
from pontil.runtime.accounting.usage_tables import CLOSED, BatchOutcome, RequestRow
from pontil.runtime.errors import RequestError

LINES, MOST = 40, 1 << 16
NAMES = {OUTPUT: "file-o", ERRORS: "file-e"}


class Crashed(Exception):
    """The end of the process, at a point where it may end."""


class BookedRun:
    """One life of a runner, which may end before any of its steps."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.random = random
        self.log = UsageFile(folder / "usage.db", FileWriter("p"))
        self.book = BatchBook(folder / "batches", folder / "usage.db")
        self.reader = LineReader(self.book.path_of("file-i"), "/v1/x", MOST, of_messages=False)
        self.files: OutcomeFiles | None = None

    def may_end(self) -> None:
        if self.random.random() < 0.2:
            raise Crashed

    def run(self) -> None:
        done = self.book.done_lines("b")
        self.files = OutcomeFiles(self.book, NAMES, self.book.progress("b").places)
        while lines := self.reader.next_lines(self.random.randint(1, 7), done):
            self.may_end()
            told = [(OUTPUT if one.error is None else ERRORS, b'{"line": %d}\n' % one.number) for one in lines]
            places = self.files.append(told)
            self.may_end()
            rows = [
                BatchOutcome("b", line.number, DONE if kind == OUTPUT else ERRORED, kind, place)
                for line, (kind, _), place in zip(lines, told, places, strict=True)
            ]
            self.log.write([*(bill(line.number, self.random) for line in lines), *rows])
            self.may_end()

    def end(self) -> None:
        """End as a killed process does: what the system holds of it is gone."""
        if self.files is not None:
            self.files.close()
        self.reader.close()
        self.book.close()
        self.log.close()


def bill(line: int, random: Random) -> RequestRow:
    name = f"b-{line}"
    return RequestRow(
        f"{name}-{random.getrandbits(64):x}",
        "p",
        name,
        "me",
        "m",
        "w",
        CLOSED,
        "stop",
        1,
        1,
        3,
        0,
        2,
        2,
        2,
        0,
        0.0,
        None,
        None,
        1.0,
        3,
    )


@pytest.mark.parametrize("seed", range(examples(4, 300)))
def test_each_line_has_one_outcome_and_one_bill(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    lines = [json.dumps({"custom_id": f"{n}", "url": "/v1/x", "body": {}}) if n % 5 else "broken" for n in range(LINES)]
    while True:
        run = None
        try:
            if not (tmp_path / "batches").exists():
                BatchBook(tmp_path / "batches", tmp_path / "usage.db").add()
                (tmp_path / "batches" / "file-i").write_text("\n".join(lines))
            run = BookedRun(tmp_path, random)
            run.run()
            break
        except Crashed:
            check(run.book if run else None)
        finally:
            if run is not None:
                run.end()
    book = BatchBook(tmp_path / "batches", tmp_path / "usage.db")
    assert check(book) == LINES == count_lines(book.path_of("file-i"), MOST)
    with open_to_read(tmp_path / "usage.db") as log:
        bills = Counter(name for (name,) in log.execute("SELECT name FROM requests"))
    assert bills == {f"b-{number}": 1 for number in range(1, LINES + 1)}


def check(book: BatchBook | None) -> int:
    """Check that what counts of the files tells each outcome once; return how many there are."""
    if book is None:
        return 0
    progress = book.progress("b")
    told = []
    for kind, name in NAMES.items():
        file = FileRow(name, "me", name, "x", 0, 0, 0, "b", kind)
        contents = book.read(file, 0, progress.places[kind])
        assert len(contents) == progress.places[kind]
        told += [json.loads(line)["line"] for line in contents.splitlines()]
    assert sorted(told) == sorted(book.done_lines("b"))
    return progress.settled


def test_a_repeated_outcome_changes_nothing(tmp_path: Path) -> None:
    log = UsageFile(tmp_path / "usage.db", FileWriter("p"))
    for place in (5, 9):
        log.write([BatchOutcome("b", 1, DONE, OUTPUT, place)])
    assert BatchBook(tmp_path / "x", tmp_path / "usage.db").progress("b").places[OUTPUT] == 5
    log.close()


def test_a_full_disk_leaves_the_files_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = BatchBook(tmp_path / "x", tmp_path / "usage.db")
    files = OutcomeFiles(book, NAMES, {})
    assert files.append([(OUTPUT, b"a\n"), (ERRORS, b"bb\n"), (OUTPUT, b"c\n")]) == [2, 3, 4]

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("os.fsync", no_room)
        with pytest.raises(OSError, match="No space"):
            files.append([(OUTPUT, b"d\n")])
    assert files.append([(OUTPUT, b"e\n")]) == [6]
    assert book.path_of(NAMES[OUTPUT]).read_bytes() == b"a\nc\ne\n"
    files.close()
    book.close()


def test_another_programs_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with sqlite3.connect(tmp_path / "x" / "batches.db") as database:
        database.execute("CREATE TABLE mine (y)")
    with pytest.raises(Exception, match="another program's file"):
        BatchBook(tmp_path / "x", tmp_path / "usage.db").unfinished()


def test_no_key_takes_all_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_reader, "MOST_KEPT", 100)
    book = BatchBook(tmp_path / "x", tmp_path / "usage.db")

    def keep(caller: str, size: int) -> None:
        book_reader.check_room(book, caller, size)
        book.add(FileRow(f"{caller}{size}", caller, "f", "batch", size, 1, 0))

    with pytest.raises(RequestError, match="100 for all"):
        keep("ann", 101)
    keep("ann", 50)
    with pytest.raises(RequestError, match="as much as it leaves free"):
        keep("ann", 1)
    keep("ben", 25)
    keep("-", 25)
    with pytest.raises(RequestError, match="0 are free: delete some$"):
        keep("-", 1)
    book.close()
