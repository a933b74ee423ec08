# SPDX-License-Identifier: Apache-2.0
"""Memory that shows a part of a file, at an address that stays when another file of the same bytes takes its place."""

import ctypes
import fcntl
import mmap
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import IO

import torch

from pontil.gpu_ops.kernels.weights.arena import HUGE_PAGE

# The system's own numbers (sys/mman.h).
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
# The system's signal when somebody waits for a lease. Its usual one ends the process, this one is ignored.
TOLD_BY = signal.SIGURG

LIBRARY = ctypes.CDLL(None, use_errno=True)
LIBRARY.mmap.restype = ctypes.c_void_p
LIBRARY.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)


class FileMemory:
    """Memory whose `tensor`, uint8 [size], shows what a file has from `offset` on, once one is shown. It begins at a
    huge page: the system maps a huge page of a file at such addresses only. A write to what is not `writable` ends this
    process. A view of the tensor keeps the memory."""

    def __init__(self, size: int, offset: int) -> None:
        """Raises OSError."""
        self.size, self.offset = size, offset
        # Only addresses: a file that Python maps stays open to write for as long as the memory is used.
        self.region = mmap.mmap(-1, size + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        whole = torch.frombuffer(self.region, dtype=torch.uint8)
        self.start = -whole.data_ptr() % HUGE_PAGE
        self.tensor = whole[self.start : self.start + size]
        self.address = self.tensor.data_ptr()

    def show(self, file: int, writable: bool = False) -> None:
        """Have the memory show the file of this descriptor. At any time other threads find the one or the other. Raises
        OSError."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | MAP_FIXED
        address = LIBRARY.mmap(self.address, self.size, protection, flags, file, self.offset)
        if address != self.address:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def advise(self, advice: int, first: int = 0, size: int | None = None) -> None:
        """Tell the system about so many bytes from `first` on, the beginning of a page; None: all behind it. Raises
        OSError."""
        self.region.madvise(advice, self.start + first, self.size - first if size is None else size)


class MappedFile:
    """All `parts` of memory that show one file, which is open to be read as `file`. Others find it at its `path`. It is
    `leased` from when a lease was taken until that is handed back."""

    def __init__(self, path: Path, file: IO[bytes], parts: list[FileMemory]) -> None:
        """Raises OSError."""
        self.path, self.parts, self.leased = path, parts, False
        self.show(file)

    def show(self, file: IO[bytes]) -> None:
        """Have all parts show a file. Raises OSError: some may show it then, and some not."""
        for part in self.parts:
            part.show(file.fileno())
        self.file = file

    def move(self, file: IO[bytes]) -> None:
        """Show another file that has the same bytes, and let go of this one. Raises OSError as `show` does."""
        old = MappedFile(self.path, self.file, [])
        self.show(file)
        self.leased = False
        old.hand_back()
        old.file.close()

    def take_lease(self) -> None:
        """Have the system hold up who opens the file to write or cuts it off, until the lease is handed back. Raises
        BlockingIOError where somebody is about to or has it open, or the system of files has none to give now, and
        OSError where there are none at all."""
        fcntl.fcntl(self.file, fcntl.F_SETSIG, TOLD_BY)
        fcntl.fcntl(self.file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        self.leased = True

    def hand_back(self) -> None:
        """Have no lease, and no lock on the file. Closing it is not enough: a child process may have it open too."""
        with suppress(OSError):
            fcntl.fcntl(self.file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        fcntl.flock(self.file, fcntl.LOCK_UN)
        self.leased = False

    @property
    def is_wanted(self) -> bool:
        """Return whether somebody waits for the lease to be handed back, or the system has waited long enough."""
        return fcntl.fcntl(self.file, fcntl.F_GETLEASE) != fcntl.F_RDLCK

    @property
    def is_replaced(self) -> bool:
        """Return whether another file has the name."""
        try:
            return not self.path.samefile(path_of(self.file))
        except OSError:
            return False


def path_of(file: IO[bytes]) -> Path:
    """Return the path at which this process opens the same file anew, whatever name it has now."""
    return Path(f"/proc/self/fd/{file.fileno()}")
