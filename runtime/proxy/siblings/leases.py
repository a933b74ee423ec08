# SPDX-License-Identifier: Apache-2.0
"""The proxies that share a port and a usage log, as files in a folder of their launch (docs/decisions/061)."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from pontil.runtime.errors import PontilError

SUFFIX = ".lease"
# Of a file that has no owner yet.
UNBORN = ".unborn"


class Lease:
    """A lock on a file, which the kernel releases when the process that holds it ends, however it ends. Several may try
    to take one, and at most one has it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    @classmethod
    def take(cls, path: Path, flags: int = 0) -> "Lease | None":
        """Take the lease; return None while another has it, or if the file has been replaced or removed. Raises OSError
        as `os.open` does."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return cls(path, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None

    def show(self) -> None:
        """Give a file that was created the name under which others look for it. Raises OSError."""
        shown_path = self.path.with_suffix("")
        self.path.rename(shown_path)
        self.path = shown_path

    @classmethod
    def create(cls, path: Path, flags: int = 0) -> "Lease":
        """Make the file and take its lease. Nobody finds it until it is shown: else another one, which looks for files
        without an owner, might take it first. Raises OSError."""
        lease = cls.take(path.with_suffix(f"{path.suffix}{UNBORN}"), flags | os.O_CREAT | os.O_EXCL)
        if lease is None:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return lease

    def release(self) -> None:
        """Leave it to whoever takes it next."""
        os.close(self.descriptor)

    def end(self) -> None:
        """Remove the file; nobody can take this lease again."""
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)


def stems(folder: Path, suffix: str) -> list[str]:
    """Return the names of the files with this suffix, without it: none where the folder is gone."""
    with suppress(FileNotFoundError):
        return [name.removesuffix(suffix) for name in os.listdir(folder) if name.endswith(suffix)]
    return []


class Siblings:
    """The proxies of one launch. Each holds the lease of its incarnation for life."""

    def __init__(self, folder: Path, incarnation: str) -> None:
        self.folder, self.incarnation = folder, incarnation
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self.own: Lease | None = Lease.create(self.path_of(incarnation))
            self.own.show()
        except OSError as error:
            raise PontilError(f"the folder {folder} of this launch cannot be used: {error.strerror}") from None

    def path_of(self, incarnation: str) -> Path:
        return self.folder / f"{incarnation}{SUFFIX}"

    def gone(self) -> list[str]:
        """Return the proxies that ended without a last word."""
        incarnations = []
        for incarnation in stems(self.folder, SUFFIX):
            if incarnation == self.incarnation:
                continue
            with suppress(FileNotFoundError):
                lease = Lease.take(self.path_of(incarnation))
                if lease is not None:
                    lease.release()
                    incarnations.append(incarnation)
        return incarnations

    def lives(self, incarnation: str) -> bool:
        """Return whether a proxy holds its lease. One that is just looked at by another proxy seems to."""
        try:
            lease = Lease.take(self.path_of(incarnation))
        except FileNotFoundError:
            return False
        if lease is not None:
            lease.release()
        return lease is None

    def forget(self, incarnation: str) -> None:
        """Forget a proxy that is gone, once its requests are settled."""
        self.path_of(incarnation).unlink(missing_ok=True)

    def close(self, owes: bool = False) -> None:
        """Remove the own lease. If this proxy still `owes` a last word, leave it for others to find, as a death
        does."""
        if self.own is not None:
            if owes:
                self.own.release()
            else:
                self.own.end()
            self.own = None
