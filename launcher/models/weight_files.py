# SPDX-License-Identifier: Apache-2.0
"""The files of packed weights of this host, as the command `weights` shows and changes them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pontil.launcher.foundation.errors import OptionError
from pontil.runtime.worker.start.packed_files import PackedFile, files_of, mappers, prune, remove


def packed_weights(cache: Path) -> list[dict[str, Any]]:
    """Return the files of packed weights as JSON values, with the processes that map each."""
    return [
        {
            "name": file.name,
            "model": file.model,
            "size": file.size,
            "used": file.used,
            "state": file.state,
            "mapped_by": mappers(file.path),
            "path": str(file.path),
            **file.about,
        }
        for file in files_of(cache)
    ]


def named_weights(cache: Path, names: Sequence[str]) -> list[PackedFile]:
    """Return the files that go by these names, or all where there are no names. Raises OptionError for a name that none
    has."""
    files = files_of(cache)
    for name in names:
        if not any(file.has_name(name) for file in files):
            raise OptionError(f"no packed weights are named {name}: `pontil weights` lists them.")
    return [file for file in files if not names or any(map(file.has_name, names))]


def verify_weights(cache: Path, names: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each file's title, and what is wrong with it once it was read whole. Raises OptionError."""
    from pontil.runtime.worker.start.packed_weights import damage

    for file in named_weights(cache, names):
        yield file.title, damage(file)


def remove_weights(cache: Path, names: Sequence[str]) -> Iterator[tuple[str, list[int], bool]]:
    """Remove files: yield each one's title, the processes that map it, and whether it is gone. Raises OptionError."""
    for file in named_weights(cache, names):
        users = mappers(file.path)
        yield file.title, users, remove(file)


def prune_weights(cache: Path) -> Iterator[str]:
    """Remove the files that this version would never read and that nobody maps: yield each one's title and state."""
    for file in prune(cache):
        yield f"{file.title}, {file.state}"
