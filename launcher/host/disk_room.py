# SPDX-License-Identifier: Apache-2.0
"""A check that a folder can be written to and has room, before anything starts."""

import os
from pathlib import Path

from pontil.launcher.foundation.errors import OptionError


def check_folder(option: str, path: Path, needed_bytes: int) -> None:
    """Raise OptionError unless files of so many bytes can be made in a folder, which may not exist yet. Files that are
    there already count as room: they are used again."""
    try:
        place = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
        if not place.is_dir():
            raise NotADirectoryError(0, "it is no folder")
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(0, f"this user may not write to {place}")
        about = os.statvfs(place)
        free = about.f_bavail * about.f_frsize + used(path)
    except OSError as error:
        raise OptionError(f"{option}: {path} cannot be used ({error.strerror}): name another folder.") from None
    if free < needed_bytes:
        raise OptionError(
            f"{option}: {path} has {mebibytes(free)} left, and the workers here need {mebibytes(needed_bytes)}: name a "
            "smaller size, which is for each worker, or another disk."
        )


def used(path: Path) -> int:
    """Return the bytes of the disk that files in the folders below a folder take, as far as they can be seen."""
    files = [file for file in path.glob("*/*") if file.is_file() and not file.is_symlink()]
    return sum(file.stat().st_blocks * 512 for file in files)


def mebibytes(size: int) -> str:
    return f"{size >> 20} MiB"
