# SPDX-License-Identifier: Apache-2.0
"""The folder of packed weights of a host: its files, who packs and who maps them, and removing them.

torch is not imported: this is also read where no model is loaded.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pontil.gpu_ops.kernels.weights.packed_file import PackedFileError, read_index
from pontil.gpu_ops.kernels.weights.places import PARTIAL
from pontil.runtime.foundation.file_lock import lock_within
from pontil.runtime.loaders.hub.hub_cache import repository_of
from pontil.runtime.probe.host_memory import gibibytes
from pontil.runtime.probe.packed_share import FOLDER, lack_of_room

logger = logging.getLogger("pontil.worker")

SUFFIX, LOCK = ".packed", ".lock"
# The end of a copy's name until it is whole: beside it another process may pack the same weights anew. Who makes it
# holds a lock of the file that it is of.
COPY = f".copy{PARTIAL}"
DAY = 86400.0
KEPT_SECONDS, REPLACED_SECONDS = 30 * DAY, DAY
LOCK_TIMEOUT = 300.0
# The shortest beginning of a file's name that stands for it.
LEAST_NAME = 6
SHOWN_NAME = 12
PROCESSES = Path("/proc")
# Code that decides what a file holds, and in which order.
SOURCES = ("gpu_ops/kernels/weights", "runtime/models", "runtime/loaders")
PRODUCT = Path(__file__).resolve().parents[3]
# The state of a file, as far as it is seen without reading it whole. Code of another version than this one wrote those
# of OTHER_CODE, which this one never reads.
COMPLETE, OTHER_CODE, DAMAGED = "complete", "of other code", "damaged"
WRITING, UNFINISHED = "being written", "unfinished"


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file of packed weights, `used` last at a time of the system's clock. `about` is empty where nothing says what
    it is of."""

    path: Path
    about: dict[str, object]
    size: int
    used: float
    state: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def model(self) -> str:
        """The name of the model's file, or of its folder where that is one of Hugging Face, or of its repository."""
        files = self.about.get("files")
        if not isinstance(files, list) or not files:
            return "-"
        first = Path(files[0])
        if first.suffix == ".gguf":
            return first.name
        return repository_of(first.parent) or first.parent.name

    @property
    def title(self) -> str:
        """The beginning of its name, and its model's."""
        return f"{self.name[:SHOWN_NAME]} ({self.model}, {gibibytes(self.size)})"

    def has_name(self, asked: str) -> bool:
        """Return whether somebody who gives the model, or a beginning of the file's name, means this one."""
        return asked == self.model or (len(asked) >= LEAST_NAME and self.name.startswith(asked))


def files_of(cache: Path) -> list[PackedFile]:
    """Return what a cache directory has, in order of use; nothing where there is none."""
    folder = (cache.expanduser() / FOLDER).resolve()
    sources = source_digest()
    paths = [path for path in folder.glob("*") if path.suffix in (SUFFIX, PARTIAL)]
    return sorted((file for path in paths if (file := file_at(path, sources)) is not None), key=lambda file: file.used)


def source_digest() -> str:
    """Hash the code that decides what a file holds, and in which order."""
    digest = hashlib.sha256()
    for place in SOURCES:
        for path in sorted((PRODUCT / place).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def file_at(path: Path, sources: str) -> PackedFile | None:
    """Return a file without reading it whole, or None if it is gone by now or not ours to read. Code with this digest
    would read it."""
    about: dict[str, object] = {}
    try:
        found = path.stat()
        if path.suffix == PARTIAL:
            state = WRITING if is_locked(path) else UNFINISHED
        else:
            about = read_index(path).about
            state = COMPLETE if about.get("sources") == sources else OTHER_CODE
    except PackedFileError:
        state = DAMAGED
    except OSError:
        return None
    return PackedFile(path, about, found.st_size, found.st_mtime, state)


def is_locked(path: Path) -> bool:
    """Return whether a process packs the weights of this file, or copies them to it."""
    is_copy = path.name.endswith(COPY)
    held = path.with_name(path.name.removesuffix(COPY) + SUFFIX) if is_copy else path.with_suffix(LOCK)
    try:
        with held.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, PermissionError):
        return False
    except BlockingIOError:
        return True
    return False


def mappers(path: Path) -> list[int]:
    """Return the processes that map a file, as far as this user may see them; none of one that is gone."""
    try:
        inode, found = str(path.stat().st_ino), list[int]()
    except FileNotFoundError:
        return []
    for process in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines = (line.split(maxsplit=5) for line in (process / "maps").read_text().splitlines())
            if any(len(line) == 6 and line[4] == inode and line[5] == str(path) for line in lines):
                found.append(int(process.name))
    return sorted(found)


def remove(file: PackedFile) -> bool:
    """Remove a file, unless a process packs these weights now or it is not ours. Those that map it keep what they
    have."""
    path, held = file.path, file.path.with_suffix(LOCK)
    unable = BlockingIOError, FileNotFoundError, PermissionError
    with contextlib.suppress(*unable), held.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Where another one has removed file and lock meanwhile, who packs them now has a lock of its own.
        if held.stat().st_ino == os.fstat(lock.fileno()).st_ino:
            for one in (path, held):
                one.unlink(missing_ok=True)
            return True
    return False


def alone(path: Path, report: Callable[[str], None]) -> IO[bytes]:
    """Take the lock of those who pack these weights; the kernel releases it if that process dies. Raises OSError where
    another one has it for long."""
    lock = locked(path, report)
    # Once the file was removed, the next process locks another one.
    while not path.exists() or path.stat().st_ino != os.fstat(lock.fileno()).st_ino:
        lock.close()
        lock = locked(path, report)
    return lock


def locked(path: Path, report: Callable[[str], None]) -> IO[bytes]:
    """Open and lock the file that is at a path now."""
    lock = path.open("ab")
    if lock_within(lock, LOCK_TIMEOUT, lambda: report("waiting for another process to pack the weights")):
        return lock
    lock.close()
    raise TimeoutError(f"another process has held {path} for {LOCK_TIMEOUT:.0f} s")


def prune(cache: Path) -> Iterator[PackedFile]:
    """Remove the files that this code would never read and that nobody maps, and yield them."""
    for file in files_of(cache):
        if file.state not in (COMPLETE, WRITING) and not mappers(file.path) and remove(file):
            yield file


def remove_unused(folder: Path) -> None:
    """Remove what nobody maps and nobody has used for long, and sooner what this code would never read: another version
    that packs it anew in a day loses time only."""
    now = time.time()
    for file in files_of(folder.parent):
        idle = now - file.used
        due = idle > KEPT_SECONDS or (idle > REPLACED_SECONDS and file.state not in (COMPLETE, WRITING))
        if due and not mappers(file.path) and remove(file):
            logger.info("removed packed weights %s, %s, used last %.0f days ago", file.title, file.state, idle / DAY)
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError):
            is_old = path.suffix not in (SUFFIX, PARTIAL) and now - path.stat().st_mtime > KEPT_SECONDS
            if is_old and not is_locked(path):
                path.unlink()


def make_room(folder: Path, size: int) -> str | None:
    """Remove what nobody maps, what this code would never read first and then what was used longest ago, until a model
    of so many bytes has room. Return in words what is missing, if that is not enough; then nothing is removed."""
    lack = lack_of_room(folder, size)
    if lack is None:
        return None
    files = [file for file in files_of(folder.parent) if file.state != WRITING and not mappers(file.path)]
    files.sort(key=lambda file: file.state == COMPLETE)
    if lack_of_room(folder, size, sum(file.size for file in files)) is not None:
        return lack
    for file in files:
        before = shutil.disk_usage(folder).free
        if remove(file):
            logger.info("removed packed weights %s, %s, as the disk has no room for others", file.title, file.state)
        # One that a process out of our sight maps gives no room back: then there is none to be had.
        if (lack := lack_of_room(folder, size)) is None or shutil.disk_usage(folder).free <= before:
            break
    return lack
