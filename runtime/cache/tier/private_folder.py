# SPDX-License-Identifier: Apache-2.0
"""A folder for one process of this user, and files in it that no other user can read."""

import ctypes
import errno
import fcntl
import os
import stat
from pathlib import Path

IN_USE = "another process uses it"


def open_folder(path: Path) -> int:
    """Make a folder if need be, closed to others, and return its descriptor. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.mkdir(mode=0o700, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"{path} belongs to another user")
        os.fchmod(folder, 0o700)
    except OSError:
        os.close(folder)
        raise
    return folder


def open_file(folder: int, name: str) -> int:
    """Open a file of the folder to be read and written, and return its descriptor. Raises OSError."""
    # A pipe of that name must not block.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    opened = os.open(name, flags, 0o600, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, f"{name} is no regular file")
    return opened


def lock(file: int) -> None:
    """Lock a file until its descriptor is closed. Raises OSError if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(errno.EWOULDBLOCK, IN_USE) from None


def allocate(file: int, size: int) -> None:
    """Reserve so many bytes of the disk for a file. Where the file system cannot, the file only gets that length.
    Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.fallocate(file, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EOPNOTSUPP, errno.ENOSYS):
        raise OSError(code, os.strerror(code))
    os.ftruncate(file, size)
