# SPDX-License-Identifier: Apache-2.0
"""Packed weights that all processes of a host share: the first that needs them writes a file, which all map."""

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pontil.gpu_ops.kernels.passed_checks import PassedChecks, state_of_file
from pontil.gpu_ops.kernels.weights.file_memory import MappedFile
from pontil.gpu_ops.kernels.weights.packed_file import PackedFileError
from pontil.gpu_ops.kernels.weights.places import NamedFile, SealedMemory
from pontil.gpu_ops.kernels.weights.shelf import MappedShelf, PrivateShelf, Shelf, WritingShelf, verify
from pontil.runtime.foundation.file_lock import wait_within
from pontil.runtime.probe.packed_share import FOLDER, LEAST_BYTES
from pontil.runtime.worker.start.packed_copy import break_time
from pontil.runtime.worker.start.packed_files import (
    LOCK,
    SUFFIX,
    PackedFile,
    alone,
    make_room,
    remove_unused,
    source_digest,
)

logger = logging.getLogger("pontil.worker")

READ_BYTES = 1 << 20
# The file of what was found whole.
CHECKED = "checked"
# All locks and leases of this host's processes (proc_locks(5)), and the words of a lease that somebody waits for.
LOCKS, BREAKING = Path("/proc/locks"), ["LEASE", "BREAKING"]
# The end of the name of a file by which it is seen whether there are leases.
PROBE = ".lease"
# Times that a file is mapped: a copy has replaced it meanwhile.
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class PackedModel:
    """The facts that decide the bits of packed weights: the model by its fingerprint and `files`, kernels, type,
    quantization, and which of so many ranks, and whether these are row-parallel. `part` names what of the model it is,
    if not all."""

    fingerprint: str
    files: Sequence[Path]
    kernels: str
    dtype: str
    quantization: str
    rank: int
    ranks: int
    row_parallel: bool
    part: str = ""

    @property
    def about(self) -> dict[str, object]:
        """The facts that a file of these weights states."""
        return {
            "fingerprint": self.fingerprint,
            "files": [str(path.parent.resolve() / path.name) for path in self.files],
            "kernels": self.kernels,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "rank": self.rank,
            "ranks": self.ranks,
            "row_parallel": self.row_parallel,
            "part": self.part,
            "sources": source_digest(),
        }

    def key(self, folder: Path | None) -> str:
        """The name under which files with equal contents and settings find each other. Raises OSError."""
        digests = [digest_of(path, folder) for path in self.files]
        settings = {**self.about, "files": digests}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]


def shelf_for(
    cache_path: Path | None, model: PackedModel, report: Callable[[str], None], memory: int | None = None
) -> Shelf:
    """Return the shelf of a model: its file, or one that writes it while this process loads the model. Where there can
    be no file, the same in the `memory` of that descriptor, which the launcher holds; and where that is not possible
    either, memory of this process. Wait while another process writes."""
    size = sum(path.stat().st_size for path in model.files)
    if cache_path is None or size < LEAST_BYTES:
        return PrivateShelf()
    folder = cache_path.expanduser() / FOLDER
    try:
        shelf: Shelf = shared_shelf(folder, model, size, report)
        logger.info("packed weights are in a file of %s that all workers of this host share", folder)
        return shelf
    except OSError as error:
        lack = str(error)
    try:
        if memory is not None:
            shelf = shelf_in_memory(SealedMemory(memory), model, report)
            logger.warning("packed weights are in memory that the workers of this launch share: %s", lack)
            return shelf
    except OSError as error:
        lack = f"{lack}; {error}"
    logger.warning("packed weights are not shared with other processes: %s", lack)
    return PrivateShelf()


def shared_shelf(folder: Path, model: PackedModel, size: int, report: Callable[[str], None]) -> Shelf:
    """Map the model's file, or begin to write it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (model.key(folder) + SUFFIX)
    seen = state_of(path)
    shelf = whole_shelf(path)
    if shelf is not None:
        return shelf
    lock = alone(path.with_suffix(LOCK), report)
    # A file that was found damaged is read again only if another process has replaced it meanwhile.
    shelf = None if state_of(path) == seen else whole_shelf(path)
    if shelf is None:
        return writing_shelf(path, model, size, lock)
    lock.close()
    return shelf


def shelf_in_memory(place: SealedMemory, model: PackedModel, report: Callable[[str], None]) -> Shelf:
    """Map what another process has packed there, or begin to pack. Raises OSError."""
    key = model.key(None)
    lock = alone(place.path, report)
    if not place.is_sealed:
        return WritingShelf(place, {**model.about, "key": key}, lock)
    lock.close()
    try:
        shelf = MappedShelf(place.path, place.reclaimable)
    except PackedFileError as error:
        raise OSError(str(error)) from error
    if shelf.index.about.get("key") != key:
        raise OSError("the memory of this launch has the weights of files that were changed since")
    return shelf


def state_of(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is replaced or written to, or None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def damage(file: PackedFile) -> str | None:
    """Read a file whole, and return what is wrong with it, if anything is."""
    try:
        verify(file.path)
    except (OSError, PackedFileError) as error:
        return str(error)
    return None


def whole_shelf(path: Path) -> MappedShelf | None:
    """Map a file that is there and whole, and that nobody is about to write to: those who map it then move to a copy,
    which gets the name. After the time that the system gives them the file is what it is, whoever writes to it."""
    shelf, deadline = None, time.monotonic() + break_time()
    for _ in range(ATTEMPTS):
        is_free = wait_within(deadline - time.monotonic(), lambda: not is_breaking(path))
        shelf = mapped_shelf(path)
        mapped = None if shelf is None else shelf.mapped
        if mapped is None or mapped.leased or not is_free or not (mapped.is_replaced or is_breaking(path)):
            break
    return shelf


def is_breaking(path: Path) -> bool:
    """Return whether somebody who wants to write to a file waits for the leases of others, or has it open by now. The
    system refuses another lease then, whoever has the others; it lists only those of this PID namespace."""
    try:
        with path.open("rb") as file:
            return not may_lease(path, file) and gives_leases(path.parent)
    except OSError:
        return is_listed(path)


def may_lease(path: Path, file: IO[bytes]) -> bool:
    """Raises OSError where there are no leases, or none for this user."""
    mapped = MappedFile(path, file, [])
    try:
        mapped.take_lease()
    except BlockingIOError:
        return False
    mapped.hand_back()
    return True


def gives_leases(folder: Path) -> bool:
    """Return whether there is a lease on a file that nobody has open to write: NFS and CIFS may never have one, and say
    the same as of one that somebody writes to."""
    made = folder / f"{os.getpid()}{PROBE}"
    try:
        made.touch()
        with made.open("rb") as file:
            return may_lease(made, file)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            made.unlink()


def is_listed(path: Path) -> bool:
    """Return whether somebody waits for a lease of this PID namespace."""
    try:
        place, lines = f":{path.stat().st_ino}", LOCKS.read_text().splitlines()
    except OSError:
        return False
    return any(line.split()[1:3] == BREAKING and line.split()[5].endswith(place) for line in lines)


def mapped_shelf(path: Path) -> MappedShelf | None:
    """Map a file that is there and whole: as far as nobody may write to it, its sums are compared once for each boot of
    this system. Its time says when it was last used."""
    passed = PassedChecks(path.with_name(CHECKED))
    try:
        shelf = MappedShelf(path, is_known=lambda file: passed.has(path.name, state_of_file(file)))
    except FileNotFoundError:
        return None
    except PackedFileError as error:
        logger.warning("%s: the weights are packed anew", error)
        return None
    os.utime(path)
    if shelf.mapped is not None and shelf.mapped.leased:
        passed.add(path.name, state_of_file(shelf.mapped.file))
    return shelf


def writing_shelf(path: Path, model: PackedModel, size: int, lock: IO[bytes]) -> WritingShelf:
    """Begin to write the file, where the disk has room for more than what it replaces. Raises OSError."""
    remove_unused(path.parent)
    if (lack := make_room(path.parent, size)) is not None:
        raise OSError(lack)
    return WritingShelf(NamedFile(path), model.about, lock)


def digest_of(path: Path, folder: Path | None) -> str:
    """Hash a file's bytes, in a folder once for each state of it: its place, size and times name what was found
    before."""
    if folder is None:
        return hashed(path)
    with path.open("rb") as file:
        known = folder / f"{state_of_file(file)}.digest"
    with contextlib.suppress(FileNotFoundError):
        found = known.read_text()
        os.utime(known)
        return found
    found = hashed(path)
    written = known.with_suffix(f".{os.getpid()}")
    written.write_text(found)
    written.rename(known)
    return found


def hashed(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while part := file.read(READ_BYTES):
            digest.update(part)
    return digest.hexdigest()
