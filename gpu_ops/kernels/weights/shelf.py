# SPDX-License-Identifier: Apache-2.0
"""Tensors and packed matrices of a model in the order in which it takes them: made anew, or mapped from a file that an
earlier process wrote (packed_file.py).
"""

import contextlib
import logging
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pontil.gpu_ops.kernels.weights.arena import HUGE_PAGE, Arena, fresh
from pontil.gpu_ops.kernels.weights.file_memory import FileMemory, MappedFile, path_of
from pontil.gpu_ops.kernels.weights.matrix import Matrix, pack
from pontil.gpu_ops.kernels.weights.packed_file import PIECE, PackedFileError, PackedIndex, read_index, write_index
from pontil.gpu_ops.kernels.weights.places import SharedPlace
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights

KEPT = (torch.int32, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.int8)
DTYPES = {str(dtype): dtype for dtype in KEPT}

logger = logging.getLogger("pontil.worker")

Packable = tuple[Tensor | QuantizedWeights, Tensor | None]
"""A weight and its bias."""


class Shelf(Protocol):
    """The weights of a model as it takes them, under the same names in the same order in each process that loads it.
    Whether the shelf `reads` the checkpoint: else it calls no `make`. So many bytes of them are `reclaimable`: the
    system counts these as memory that is free. `mapped` is the file that has them, once the shelf is finished; None
    where nobody can change it."""

    reads: bool
    mapped: MappedFile | None

    @property
    def reclaimable(self) -> int: ...

    def tensor(self, name: str, make: Callable[[], Tensor]) -> Tensor: ...

    def matrices(self, name: str, make: Callable[[], Sequence[Packable]]) -> list[Matrix]: ...

    def finish(self) -> None:
        """End the model's last item."""


class PrivateShelf:
    """Weights in the memory of this process."""

    reads, reclaimable = True, 0
    mapped: MappedFile | None = None

    def tensor(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        return make()

    def matrices(self, name: str, make: Callable[[], Sequence[Packable]]) -> list[Matrix]:
        return [pack(*item) for item in make()]

    def finish(self) -> None:
        pass


class WritingShelf:
    """Weights in the memory of a file that is written as they are made, and published once they are `finish`ed. This
    process uses them too, and from then on can write them no more. A disk that fills has the rest be private, and the
    file be given up. The `lock` is held until then."""

    reads = True

    def __init__(self, place: SharedPlace, about: dict[str, object], lock: IO[bytes]) -> None:
        """Raises OSError."""
        self.place, self.about, self.lock = place, about, lock
        self.file = place.begin()
        self.regions: list[FileMemory] = []
        self.mapped: MappedFile | None = None
        self.items: list[dict[str, object]] = []
        self.size = 0
        self.failure: OSError | None = None
        self.arena = Arena(self.grow)

    @property
    def reclaimable(self) -> int:
        return self.size if self.place.reclaimable else 0

    def grow(self, size: int) -> Tensor:
        """Map so many bytes more of the file, as whole huge pages."""
        size += -size % HUGE_PAGE
        try:
            # A page that a full disk has no room for would end this process when it writes there.
            os.posix_fallocate(self.file.fileno(), self.size, size)
            region = FileMemory(size, self.size)
            region.show(self.file.fileno(), writable=True)
        except OSError as error:
            self.failure = error
            return fresh(size)
        self.regions.append(region)
        self.size += size
        return region.tensor

    def tensor(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        copy = self.arena.copy(make())
        if self.failure is None:
            self.items.append({"name": name, "tensor": self.described(copy)})
        return copy

    def matrices(self, name: str, make: Callable[[], Sequence[Packable]]) -> list[Matrix]:
        matrices = [pack(*item, self.arena) for item in make()]
        if self.failure is None:
            self.items.append({"name": name, "matrices": [self.described_matrix(matrix) for matrix in matrices]})
        return matrices

    def described(self, tensor: Tensor) -> dict[str, object]:
        address = tensor.data_ptr()
        region = next(region for region in self.regions if region.address <= address < region.address + region.size)
        offset = region.offset + address - region.address
        return {"dtype": str(tensor.dtype), "shape": list(tensor.shape), "offset": offset}

    def described_matrix(self, matrix: Matrix) -> dict[str, object]:
        values = {field.name: getattr(matrix, field.name) for field in fields(matrix)}
        return {name: self.described(value) if isinstance(value, Tensor) else value for name, value in values.items()}

    def finish(self) -> None:
        """Write the index, and publish the file. From then on this process can write to it no more either."""
        try:
            mapping = self.read_only()
            if self.failure is not None:
                raise self.failure
            self.write_index()
            self.place.publish(self.file)
            self.mapped = mapping if self.place.reclaimable else None
        except OSError as error:
            logger.warning("weights are not shared with other processes: %s", error)
            self.place.give_up()
        finally:
            self.file.close()
            self.arena = Arena()
            if self.mapped is not None:
                lease(self.mapped)
            self.lock.close()

    def read_only(self) -> MappedFile:
        """Have all regions be read only."""
        return MappedFile(self.place.path, path_of(self.file).open("rb"), self.regions)

    def write_index(self) -> None:
        sums = [piece for region in self.regions for piece in sums_of(region.tensor.numpy())]
        write_index(self.file, PackedIndex(self.about, self.items, sums, self.size))


class MappedShelf:
    """Weights of a file that another process wrote, in memory that all who map it share."""

    reads = False

    def __init__(
        self, path: Path, reclaimable: bool = True, is_known: Callable[[IO[bytes]], bool] = lambda file: False
    ) -> None:
        """Map a file, and compare its sums unless it `is_known` to be whole. Raises OSError, and PackedFileError where
        the file is damaged."""
        self.index = read_index(path)
        self.reclaimable = self.index.size if reclaimable else 0
        whole = FileMemory(self.index.size, 0)
        self.memory, file = whole.tensor, MappedFile(path, path.open("rb"), [whole])
        whole.advise(mmap.MADV_WILLNEED)
        self.mapped = file if reclaimable else None
        if self.mapped is not None:
            lease(self.mapped)
        # Nobody writes to the file from here on without a word, where there is a lease.
        is_whole = file.leased and is_known(file.file)
        if not is_whole and sums_of(self.memory.numpy()) != self.index.sums:
            file.hand_back()
            raise PackedFileError(f"{path} is damaged")
        self.next = 0

    def take(self, name: str, kind: str) -> object:
        item = self.index.items[self.next] if self.next < len(self.index.items) else {}
        if item.get("name") != name or kind not in item:
            raise PackedFileError(f"{name} is not the next item of the packed weights")
        self.next += 1
        return item[kind]

    def tensor(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        return self.placed(self.take(name, "tensor"))

    def matrices(self, name: str, make: Callable[[], Sequence[Packable]]) -> list[Matrix]:
        descriptions = self.take(name, "matrices")
        assert isinstance(descriptions, list)
        return [self.matrix(description) for description in descriptions]

    def matrix(self, described: dict[str, Any]) -> Matrix:
        values: dict[str, Any] = {
            name: self.placed(value) if isinstance(value, dict) else value for name, value in described.items()
        }
        return Matrix(**values)

    def placed(self, described: object) -> Tensor:
        assert isinstance(described, dict)
        dtype, shape = DTYPES[described["dtype"]], described["shape"]
        size = dtype.itemsize * torch.Size(shape).numel()
        return self.memory[described["offset"] : described["offset"] + size].view(dtype).view(shape)

    def finish(self) -> None:
        if self.next != len(self.index.items):
            raise PackedFileError("the packed weights have more items than the model takes")


def lease(mapped: MappedFile) -> None:
    """Take the lease if there is one to be had. The system waits for it longer than most models take to load, after
    which a PackedGuard looks at it."""
    with contextlib.suppress(OSError):
        mapped.take_lease()


def verify(path: Path) -> None:
    """Read a file whole, and compare its sums. Raises OSError, and PackedFileError where it is damaged."""
    index = read_index(path)
    with path.open("rb") as file:
        for number, expected_sum in enumerate(index.sums):
            piece = file.read(PIECE)
            if len(piece) < PIECE or sums_of(np.frombuffer(piece, np.uint8)) != [expected_sum]:
                raise PackedFileError(
                    f"{path} is damaged between the bytes {number * PIECE} and {(number + 1) * PIECE}"
                )


def sums_of(memory: "np.ndarray[Any, np.dtype[np.uint8]]") -> list[int]:
    """The sum of each piece's words, modulo 2^64: enough to notice bytes that were lost or changed by accident. By one
    thread: torch's would wait for each other at each piece."""
    sums: list[int] = memory.view(np.int64).reshape(-1, PIECE // 8).sum(1).tolist()
    return sums
