# SPDX-License-Identifier: Apache-2.0
"""The places of packed weights that processes share: a file of the cache directory, or memory that a launcher holds."""

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import IO, Protocol

# New in Linux 5.1; Python has no name for it. Mappings that are there may be written on.
F_SEAL_FUTURE_WRITE = 0x0010
PARTIAL = ".partial"


class SharedPlace(Protocol):
    """A place for one file, which others see once it is published. The system counts the pages of one that is
    `reclaimable` as free memory."""

    path: Path
    reclaimable: bool

    def begin(self) -> IO[bytes]:
        """Open an empty file to be written. Raises OSError."""

    def publish(self, file: IO[bytes]) -> None:
        """Let others see what was written. Raises OSError."""

    def give_up(self) -> None:
        """Have no other process use what was written."""


class NamedFile:
    """A file that gets its name once it is whole and on the disk. Somebody who cut it off would end all processes that
    map it, so from then on even its owner cannot open it to write."""

    reclaimable = True

    def __init__(self, path: Path, partial: str = PARTIAL) -> None:
        self.path, self.partial = path, path.with_suffix(partial)

    def begin(self) -> IO[bytes]:
        # Somebody may still map the one that was left there.
        self.partial.unlink(missing_ok=True)
        return self.partial.open("x+b")

    def publish(self, file: IO[bytes]) -> None:
        os.fsync(file.fileno())
        self.name(file)

    def name(self, file: IO[bytes]) -> None:
        """Give the file its name, though the disk may not have all of it yet. Raises OSError."""
        os.fchmod(file.fileno(), stat.S_IRUSR)
        self.partial.rename(self.path)

    def give_up(self) -> None:
        self.partial.unlink(missing_ok=True)


class SealedMemory:
    """An anonymous file, which its path opens anew, so that each process has a lock of its own. Once it is sealed
    nobody can change its size or what is in it."""

    reclaimable = False

    def __init__(self, descriptor: int) -> None:
        self.path = Path(f"/proc/self/fd/{descriptor}")

    @property
    def is_sealed(self) -> bool:
        with self.path.open("rb") as file:
            return bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)

    def begin(self) -> IO[bytes]:
        file = self.path.open("r+b")
        os.truncate(file.fileno(), 0)
        return file

    def publish(self, file: IO[bytes]) -> None:
        try:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a system that does not know it
                raise
        self.seal()

    def give_up(self) -> None:
        """Leave it incomplete for good: the pages that were written are in use here, and nobody may cut them off."""
        self.seal()

    def seal(self) -> None:
        with self.path.open("r+b") as file:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
