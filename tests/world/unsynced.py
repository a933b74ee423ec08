# SPDX-License-Identifier: Apache-2.0
"""Writes that nobody synced, and a power cut that takes some of them away: of a database what was committed since it
was last synced, of a tier any pages, and all of a run directory, which a launch does not keep."""

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pontil.runtime.wire.simulated.processes import WorldProcess

PAGE = 4096
# PRAGMA synchronous of a database whose commits are on the disk when they return.
FULL = 2
# Share of unsynced commits, and of pages that are written again, which the system has written out by then; share of
# pages that are as they were when the power comes back, and of files whose length is as it was.
WRITTEN_OUT, LOST, SHORT = 0.3, 0.5, 0.1
# Added by SQLite to the name of a database.
PARTS = ("", "-wal", "-shm")


class UnsyncedWrites:
    """The writes of a seed that are not synced. `databases` are copies of those that have such commits, by path;
    `pages` are what lies on the disk in place of what was written, by file and number."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.databases: dict[str, list[bytes | None]] = {}
        self.opened: list[tuple[WorldProcess, sqlite3.Connection]] = []
        self.pages: dict[str, dict[int, bytes]] = {}
        self.writers: dict[str, str] = {}

    def committed(self, database: sqlite3.Connection, path: str) -> None:
        """Note a commit to a database."""
        if database.execute("PRAGMA synchronous").fetchone()[0] >= FULL:
            self.databases.pop(path, None)
        elif path not in self.databases or self.chance.random() < WRITTEN_OUT:
            self.databases[path] = [content(Path(path + part)) for part in PARTS[:2]]

    def write(self, file: int, place: int, size: int, writer: str) -> None:
        """Note a write to a file that is not synced, before it happens."""
        path = os.readlink(f"/proc/self/fd/{file}")
        self.writers[path] = writer
        held = self.pages.setdefault(path, {})
        for number in range(place // PAGE, -(-(place + size) // PAGE)):
            if number not in held or self.chance.random() < WRITTEN_OUT:
                held[number] = os.pread(file, PAGE, number * PAGE)

    def lose(self, goes: Callable[[str], bool]) -> None:
        """Lose what processes wrote whose name `goes`: they have all died."""
        for process, database in self.opened:
            if goes(process.name):
                # Else the last end of a connection would take away the files that are put in its place.
                database.close()
        self.opened = [one for one in self.opened if not goes(one[0].name)]
        for path, writer in self.writers.items():
            if goes(writer) and os.path.exists(path):
                self.lose_pages(Path(path), self.pages.pop(path, {}))

    def lose_pages(self, path: Path, pages: dict[int, bytes]) -> None:
        with path.open("r+b") as file:
            for number, data in sorted(pages.items()):
                if self.chance.random() < LOST:
                    file.seek(number * PAGE)
                    file.write(data)
            if self.chance.random() < SHORT:
                file.truncate(int(self.chance.random() * path.stat().st_size))

    def lose_commits(self) -> None:
        """Have each database be as it was after one of the commits since it was synced."""
        for path, parts in self.databases.items():
            for part in PARTS:
                Path(path + part).unlink(missing_ok=True)
            for part, data in zip(PARTS, parts, strict=False):
                if data is not None:
                    Path(path + part).write_bytes(data)
        self.databases.clear()


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def remove_run_directory(folder: Path, kept: tuple[str, ...]) -> None:
    """Remove the files of a launch that died, as the next one does, but for those with these beginnings."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(kept):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
