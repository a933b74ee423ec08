# SPDX-License-Identifier: Apache-2.0
"""A disk may have room again; a wrong path does not become right."""

import errno
import sqlite3
from pathlib import Path

import pytest

from pontil.runtime.foundation.file_faults import may_pass


@pytest.mark.parametrize(
    ("number", "passes"),
    [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, True), (errno.ENOENT, False), (errno.EACCES, False)],
)
def test_a_fault_of_the_disk_may_pass_and_one_of_the_path_does_not(number: int, passes: bool) -> None:
    assert may_pass(OSError(number, "said")) is passes


def test_a_full_database_may_pass_and_a_file_that_is_none_does_not(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "full") as database:
        database.execute("PRAGMA max_page_count = 2")
        database.execute("CREATE TABLE one (x)")
        with pytest.raises(sqlite3.Error) as full:
            database.execute("CREATE TABLE two (x)")
    (tmp_path / "text").write_text("no database, " * 100)
    with pytest.raises(sqlite3.Error) as foreign:
        sqlite3.connect(tmp_path / "text").execute("SELECT * FROM sqlite_master")
    assert may_pass(full.value) and not may_pass(foreign.value)
    assert not may_pass(sqlite3.ProgrammingError("closed"))
