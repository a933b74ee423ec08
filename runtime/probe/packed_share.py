# SPDX-License-Identifier: Apache-2.0
"""The question of whether the workers of a launch will have their packed weights once, and where a file of them fits.

torch is not imported: this is asked before the first worker starts.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pontil.runtime.loaders.facts.shards import shards

FOLDER = "weights"
# Smaller models are packed faster than a file is worth.
LEAST_BYTES = 64 << 20
# Bytes that packing may make of a byte of the model's files, and room that a file leaves on its disk.
PACKED_SHARE, SPARED_BYTES = 2, 1 << 30


def are_shared(path: Path, has_kernels: bool) -> bool:
    """Return whether workers that compute on a CPU's cores, with kernels if they can, have these weights once: in a
    file of the cache, or else in memory that the launcher holds."""
    return has_kernels and bytes_of(path) >= LEAST_BYTES


def bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in (shards(path) if path.is_dir() else [path]))


def lack_of_room(folder: Path, size: int, spare: int = 0) -> str | None:
    """Return in words why weights of a model of so many bytes cannot be a new file of a folder, if so, once `spare`
    bytes of others are removed."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return f"{place} cannot be written"
    free = shutil.disk_usage(place).free + spare
    if free < PACKED_SHARE * size + SPARED_BYTES:
        return f"{place} has {free >> 20} MiB left, which is too little"
    return None
