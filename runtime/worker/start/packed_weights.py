# SPDX-License-Identifier: Apache-2.0
"""Packed weights that all processes of a host share: the first that needs them writes a file, which all map."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pontil.gpu_ops.kernels.weights.shelf import PrivateShelf, Shelf, WritingShelf
from pontil.runtime.reporting import Reporter

logger = logging.getLogger("pontil.worker")

FOLDER, SUFFIX = "weights", ".packed"
# Smaller models are packed faster than a file is worth.
LEAST_BYTES = 64 << 20
# Room that a file leaves on its disk.
SPARED_BYTES = 1 << 30
# Code that decides what the file holds, and in which order.
SOURCES = ("gpu_ops/kernels/weights", "runtime/models", "runtime/loaders")
READ_BYTES = 1 << 20
LOOK = 0.2


@dataclass(frozen=True, slots=True)
class PackedModel:
    """What decides the bits of packed weights besides the model's `files`: kernels, type, quantization, and which of so
    many ranks."""

    files: Sequence[Path]
    kernels: str
    dtype: str
    quantization: str
    rank: int
    ranks: int

    @property
    def about(self) -> dict[str, object]:
        """The facts that a file of these weights states."""
        return {
            "files": [str(path.resolve()) for path in self.files],
            "kernels": self.kernels,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "rank": self.rank,
            "ranks": self.ranks,
        }

    def key(self, folder: Path) -> str:
        """The name under which files with equal contents and settings find each other. Raises OSError."""
        digests = [digest_of(path, folder) for path in self.files]
        settings = {**self.about, "files": digests, "sources": source_digest()}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]


@contextlib.contextmanager
def open_shelf(cache_path: Path | None, model: PackedModel, report: Reporter) -> Iterator[Shelf]:
    """Give the shelf of a model: its file, or one that writes it while this process loads the model; private memory
    where that is not possible. It waits while another process writes."""
    size = sum(path.stat().st_size for path in model.files)
    if cache_path is None or size < LEAST_BYTES:
        yield PrivateShelf()
        return
    folder = cache_path.expanduser() / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (model.key(folder) + SUFFIX)
        with written_alone(path, report) as found:
            shelf = found or writing_shelf(path, model, size)
            yield shelf
            if isinstance(shelf, WritingShelf) and shelf.finished:
                part_of(path).rename(path)
    except OSError as error:
        logger.warning("weights are not shared with other processes: %s", error)
        yield PrivateShelf()
