# SPDX-License-Identifier: Apache-2.0
"""Disks of the world: the product's own calls on real files in memory, which can fill, be slow, or end their process in
the middle of a write. Times of files are virtual.

A launch has three: `usage` with the usage log, `run` with its run directory (the records of streams, leases, pages of
metrics), and `kv` with the workers' tiers.
"""

import errno
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from unsynced import UnsyncedWrites, remove_run_directory
from virtual_time import HERE, SeededWorld

from pontil.runtime.wire.simulated.virtual_time import ProcessDied

if TYPE_CHECKING:
    from pontil.runtime.wire.simulated.processes import WorldProcess

RUN, USAGE, KV = "run", "usage", "kv"
DISKS = (RUN, USAGE, KV)
# Seconds that one write to a slow disk takes at most: a proxy writes records in its event loop.
SLOW_WRITE = {RUN: 0.03, USAGE: 1.5, KV: 0.1}
# A process that is to die in a write does so in one of so many that come next, or in none within so many seconds.
WRITES, DIES_WITHIN = 6, 2.0
# Share of writes to a full disk for which there is no room at all; of others a part is written.
NO_ROOM = 0.5
FULL = "database or disk is full"
# The beginnings of what does not lie in the run directory: of responses so in a share of seeds, where the operator has
# named a file for them.
KEPT, RESPONSES, NAMED = (USAGE, KV, "memory"), "responses", 0.5


@dataclass(slots=True)
class DeadlyWrite:
    """The write in which a process dies: after so many others, with this share of it done."""

    others: int
    share: float


@dataclass(slots=True)
class WorldDisk:
    """One disk, full or slow until a time."""

    name: str
    full_until: float = 0.0
    slow_until: float = 0.0


class WorldDisks:
    """The disks of a world, below a folder. `files` are the open files of its processes by descriptor; `whole` counts
    the writes to each file, by inode, that were done whole."""

    def __init__(self, world: SeededWorld, folder: Path) -> None:
        self.world, self.folder = world, f"{folder}/"
        world.disks = self
        self.chance = world.random("disks")
        self.disks = {name: WorldDisk(name) for name in DISKS}
        self.files: dict[int, WorldDisk] = {}
        self.whole: Counter[int] = Counter()
        self.deadly: dict[WorldProcess, DeadlyWrite] = {}
        # The processes whose last commit to a disk was refused.
        self.refused: set[tuple[WorldProcess | None, str]] = set()
        # When a process of a name last had no room on a disk.
        self.without_room: dict[tuple[str, str], float] = {}
        # Requests whose rows waited for a bad disk when their proxy died, and are lost (docs/operate/accounting.md).
        self.lost_rows: set[str] = set()
        # The writes that a power cut would take away, if there is one; and when the last one of the first host was.
        self.unsynced: UnsyncedWrites | None = None
        self.lost_at: float | None = None

    @property
    def usage_is_late(self) -> bool:
        """True if what waits for the usage log's disk may be longer on its way than a client waits for it."""
        return self.world.time < self.disks[USAGE].slow_until + SLOW_WRITE[USAGE]

    def disk_of(self, path: Any) -> WorldDisk | None:
        """Return the disk that a file lies on, if it is one of the world's."""
        place = os.fspath(path)
        if not isinstance(place, str) or not place.startswith(self.folder):
            return None
        return self.disks[next((name for name in (USAGE, KV) if place.startswith(name, len(self.folder))), RUN)]

    def begin(self, disk: WorldDisk, size: int) -> int:
        """Begin a write by the process that runs. Return how many of its bytes are written before `end` is called.
        Raises OSError."""
        if self.world.time < disk.slow_until:
            self.world.spend(self.chance.random() * SLOW_WRITE[disk.name])
        if self.world.time < disk.full_until:
            if size < 2 or self.chance.random() < NO_ROOM:
                if self.world.current is not None:
                    self.without_room[self.world.current.name, disk.name] = self.world.time
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return 1 + int((size - 1) * self.chance.random())
        deadly = self.of_this_process()
        if deadly is None:
            return size
        deadly.others -= 1
        return size if deadly.others >= 0 else int(size * deadly.share)

    def end(self) -> None:
        """End a write: a process that was to die in it does."""
        deadly, process = self.of_this_process(), self.world.current
        if process is not None and deadly is not None and deadly.others < 0:
            self.world.note("dies in a write", process)
            del self.deadly[process]
            process.kill()
            # Its calls return later than its death.
            self.world.spend(1e-6)
            raise ProcessDied

    def cut_power(self, host: int, host_of: Callable[[str], int]) -> None:
        """Lose what was not synced on a host whose processes have all died."""
        if self.unsynced is None:
            return
        self.unsynced.lose(lambda name: host_of(name) == host)
        if host == 0:
            self.lost_at = self.world.time
            self.unsynced.lose_commits()
            remove_run_directory(Path(self.folder), KEPT + (RESPONSES,) * (self.chance.random() < NAMED))

    def of_this_process(self) -> DeadlyWrite | None:
        return self.deadly.get(self.world.current) if self.deadly and self.world.current is not None else None


class WorldDatabase(sqlite3.Connection):
    """A database of a process of the world: its commits are writes to a disk."""

    disk: WorldDisk | None = None
    path = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        if kind is not None or self.disk is None:
            return super().__exit__(kind, error, trace)
        disks = HERE.world.disks
        try:
            written = disks.begin(self.disk, 2)
        except OSError:
            written = 0
        writer = HERE.world.current, self.disk.name
        if written == 2:
            super().__exit__(None, None, None)
            disks.refused.discard(writer)
            if disks.unsynced is not None:
                disks.unsynced.committed(self, self.path)
        else:
            self.rollback()
            disks.refused.add(writer)
        disks.end()
        if written < 2:
            raise sqlite3.OperationalError(FULL)
        return False


@dataclass(frozen=True, slots=True)
class RealFiles:
    """The calls that were there before."""

    write: Any
    pwrite: Any
    open: Any
    close: Any
    utime: Any


REAL: RealFiles


def install_disks() -> None:
    """Replace the calls that write to files, or change folders."""
    global REAL
    REAL = RealFiles(os.write, os.pwrite, os.open, os.close, os.utime)
    replaced: list[tuple[Any, str, Any]] = [
        (os, "write", lambda file, data: written(REAL.write, file, data)),
        (os, "pwrite", lambda file, data, place: written(REAL.pwrite, file, data, place)),
        (os, "open", opened), (os, "close", closed), (os, "utime", set_times),
        (sqlite3, "connect", connected), (Path, "write_bytes", write_bytes),
    ]  # fmt: skip
    replaced += [(os, name, by_the_living(getattr(os, name))) for name in ("unlink", "rename", "replace", "ftruncate")]
    for owner, name, stand_in in replaced:
        setattr(owner, name, stand_in)


def stamp(file: Any) -> None:
    """Give a file the time of the world."""
    now = int(time.time() * 1e9)
    REAL.utime(file, ns=(now, now))


def written(put: Callable[..., int], file: int, data: Any, *place: int) -> int:
    """Write to a file of the world, as far as its disk and the process's life allow."""
    disks = HERE.world.disks
    if HERE.world.current is None or (disk := disks.files.get(file)) is None:
        return put(file, data, *place)
    must_live()
    size = disks.begin(disk, len(data))
    if disks.unsynced is not None and disk.name == KV:
        disks.unsynced.write(file, place[0], size, HERE.world.current.name)
    count = put(file, memoryview(data)[:size], *place)
    stamp(file)
    disks.end()
    if count == len(data):
        disks.whole[os.fstat(file).st_ino] += 1
    return count


def opened(path: Any, flags: int, mode: int = 0o777, **given: Any) -> int:
    disks = HERE.world.disks
    folder = given.get("dir_fd")
    disk = None
    if HERE.world.current is not None:
        disk = disks.disk_of(path) if folder is None else disks.files.get(folder)
    if disk is None:
        made: int = REAL.open(path, flags, mode, **given)
        return made
    must_live()
    is_new = flags & os.O_CREAT and folder is None and not os.path.lexists(path)
    if is_new:
        disks.begin(disk, 1)
    made = REAL.open(path, flags, mode, **given)
    disks.files[made] = disk
    if is_new:
        stamp(made)
        disks.whole[os.fstat(made).st_ino] = 0
        disks.end()
    return made


def closed(file: int) -> None:
    current = HERE.world.current
    # The files of a process that has died are closed already.
    if current is None or current.alive or file in current.descriptors:
        HERE.world.disks.files.pop(file, None)
        REAL.close(file)


def set_times(file: Any, times: Any = None, **given: Any) -> None:
    must_live()
    if times is None and not given:
        stamp(file)
    else:
        REAL.utime(file, times, **given)


def connected(address: str | Path, *given: Any, **more: Any) -> sqlite3.Connection:
    if HERE.world.current is None:
        return sqlite3.Connection(address, *given, **more)
    made, disks = WorldDatabase(address, *given, **more), HERE.world.disks
    made.path = unquote(os.fspath(address).removeprefix("file:").partition("?")[0])
    made.disk = disks.disk_of(made.path)
    if disks.unsynced is not None:
        disks.unsynced.opened.append((HERE.world.current, made))
    return made


def write_bytes(path: Path, data: Any) -> int:
    """Stands for Path.write_bytes."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        count = os.write(file, data)
        if count < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)
    return count


def by_the_living(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def called(*given: Any, **more: Any) -> Any:
        must_live()
        return call(*given, **more)

    return called


def must_live() -> None:
    """Go on only as a process that lives."""
    current = HERE.world.current
    if current is not None and not current.alive:
        raise ProcessDied
