# SPDX-License-Identifier: Apache-2.0
"""A copy of packed weights, for those who map a file to which somebody is about to write."""

import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from pontil.gpu_ops.kernels.weights.file_memory import MappedFile, path_of
from pontil.gpu_ops.kernels.weights.packed_file import PackedFileError, read_index
from pontil.gpu_ops.kernels.weights.places import NamedFile
from pontil.gpu_ops.kernels.weights.shelf import verify
from pontil.runtime.foundation.file_lock import lock_within
from pontil.runtime.probe.host_memory import gibibytes, host_room
from pontil.runtime.probe.packed_share import PACKED_SHARE, lack_of_room
from pontil.runtime.worker.start.packed_files import COPY

# Bytes that are copied between two looks at the clock.
COPIED_BYTES = 64 << 20
# Shares of the time that there is: until then a disk is copied to, and so long the copy of another process waited for.
# What is left suffices to copy to memory.
COPYING, WAITING = 1 / 3, 2 / 3
# Seconds that the system gives a process for handing a lease back, 0 for any number.
BREAK_TIME, USUAL_BREAK_TIME = Path("/proc/sys/fs/lease-break-time"), 45.0


def copy_of(mapped: MappedFile, seconds: float) -> tuple[IO[bytes], str]:
    """Return a file with the same bytes, open to be read, and what it is, in words. It has the name of the old one, so
    that all who map that go over to the same; where the disk has no room, or is not fast enough to have it within the
    `seconds` that there are, it is memory of this process. Raises OSError and PackedFileError where neither is
    possible."""
    until = time.monotonic() + COPYING * seconds
    # One process at a time: the others find its copy, or know how much memory is left beside it. The lock goes with
    # the old file, or with its process.
    lock_within(mapped.file, WAITING * seconds)
    try:
        return copy_of_another(mapped) or named_copy(mapped, until), "a copy, which has its name"
    except (OSError, PackedFileError) as error:
        return copy_in_memory(mapped), f"memory of its own ({error})"


def copy_of_another(mapped: MappedFile) -> IO[bytes] | None:
    """Return the file that has the name now, if it is another one with the same bytes."""
    with ExitStack() as opened, suppress(OSError, PackedFileError):
        found = opened.enter_context(mapped.path.open("rb"))
        if not os.path.sameopenfile(found.fileno(), mapped.file.fileno()):
            check(found, mapped)
            opened.pop_all()
            return found
    return None


def named_copy(mapped: MappedFile, until: float) -> IO[bytes]:
    """Make a copy that gets the name. The disk may not have all of it yet: who maps it later compares its sums. Raises
    OSError and PackedFileError."""
    lack = lack_of_room(mapped.path.parent, size_of(mapped) // PACKED_SHARE)
    if lack is not None:
        raise OSError(lack)
    place = NamedFile(mapped.path, COPY)
    with ExitStack() as undo, place.begin() as written:
        undo.callback(place.give_up)
        fill(written, mapped, until)
        copy = undo.enter_context(path_of(written).open("rb"))
        check(copy, mapped)
        place.name(written)
        undo.pop_all()
    return copy


def copy_in_memory(mapped: MappedFile) -> IO[bytes]:
    """Copy to memory that no other process has. Raises OSError and PackedFileError."""
    size, room = size_of(mapped), host_room()
    if room.bytes < size:
        raise OSError(f"{room.where} has {gibibytes(room.bytes)} of memory left, and they are {gibibytes(size)}")
    with ExitStack() as undo, open(os.memfd_create("pontil-weights", os.MFD_CLOEXEC), "wb") as written:
        fill(written, mapped)
        copy = undo.enter_context(path_of(written).open("rb"))
        check(copy, mapped)
        undo.pop_all()
    return copy


def fill(written: IO[bytes], mapped: MappedFile, until: float | None = None) -> None:
    """Write the bytes of a mapped file to an empty one. Raises OSError."""
    at, size = 0, size_of(mapped)
    while at < size:
        if until is not None and time.monotonic() > until:
            raise TimeoutError(f"the disk has taken only {gibibytes(at)} of {gibibytes(size)} in time")
        sent = os.sendfile(written.fileno(), mapped.file.fileno(), at, min(COPIED_BYTES, size - at))
        if not sent:
            raise OSError(f"{mapped.path} was cut off while it was copied")
        at += sent


def check(copy: IO[bytes], mapped: MappedFile) -> None:
    """Raise PackedFileError unless a copy is whole and has the same weights."""
    verify(path_of(copy))
    if read_index(path_of(copy)) != read_index(path_of(mapped.file)):
        raise PackedFileError(f"{mapped.path} has other weights by now")


def size_of(mapped: MappedFile) -> int:
    return os.fstat(mapped.file.fileno()).st_size


def break_time() -> float:
    """Return the seconds until the system lets go on who waits for a lease."""
    try:
        return float(BREAK_TIME.read_text()) or USUAL_BREAK_TIME
    except OSError:
        return USUAL_BREAK_TIME
