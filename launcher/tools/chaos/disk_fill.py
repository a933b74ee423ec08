# SPDX-License-Identifier: Apache-2.0
"""A full disk for a time: a file without a name takes all of the free room, and is gone with this process."""

import os
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType

# A larger filesystem is somebody's, and takes too long to fill.
MOST_BYTES = 1 << 30
SLICE_BYTES = 16 << 20


def small_filesystems(folders: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a folder on each filesystem that is small enough to be filled, and why the others are left alone."""
    folders_by_device, reasons = dict[int, str](), list[str]()
    for folder in folders:
        try:
            about, device = os.statvfs(folder), os.stat(folder).st_dev
        except OSError as error:
            reasons.append(f"{folder} cannot be looked at ({error.strerror})")
            continue
        size = about.f_blocks * about.f_frsize
        if size > MOST_BYTES:
            reasons.append(f"{folder} is on a filesystem of {size / 2**30:.1f} GiB: only one of up to 1 GiB is filled")
        else:
            folders_by_device.setdefault(device, folder)
    return list(folders_by_device.values()), reasons


class DiskFill:
    """The file that fills a folder's filesystem, from `top_up` to the end of the block. Raises OSError if none can be
    made there. A call of `top_up` may still go on in another thread then: it ends with the file."""

    def __init__(self, folder: str) -> None:
        # It never has a name, where the filesystem can do that.
        self.file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.using = threading.Lock()
        self.size = 0

    def __enter__(self) -> "DiskFill":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self.using:
            self.file.close()

    def top_up(self) -> int:
        """Take all room that is free now, also what was freed since the last call; return the bytes taken so far."""
        step = SLICE_BYTES
        while step >= 512:
            with self.using:
                if self.file.closed:
                    break
                try:
                    os.posix_fallocate(self.file.fileno(), self.size, step)
                    self.size += step
                except OSError:
                    step //= 2
        return self.size
