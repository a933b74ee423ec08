# SPDX-License-Identifier: Apache-2.0
"""Collectives of ranks on one host: memory that the driver makes and the others map through /proc.

It is an anonymous file (memfd) of fixed size, so that it has no name in any file system and nothing is left behind.
"""

import fcntl
import mmap
import os
import secrets
from typing import Any

import torch
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import CollectiveError, Counts, Recordings, added
from pontil.gpu_ops.collectives.descriptor import positive, secret, whole
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.rank_group import HEADER_BYTES, MOST_RANKS, SharedGroup

KIND = "shared_memory"
DEADLINE = 10.0
IDENTITY_BYTES = 32
C_INT = (1 << 31) - 1
# A row of activations is padded to so many numbers, and kernels read so many rows behind the last one.
ROW_UNIT, ROWS_BEHIND = 32, 31
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def exchange_bytes(widest: int, rows: int) -> int:
    """The size of a memory for tiles of so many rows; `widest` is the number of inputs or outputs of the widest product
    that exchanges any."""
    return HEADER_BYTES + 2 * (rows + ROWS_BEHIND) * (widest + -widest % ROW_UNIT) * 4


class SharedMemoryCommunicator:
    """A Communicator, which the kernels of `library` use too. Of one library there is one at a time; it is closed
    before the library is. The ranks' tensors are on the CPU."""

    def __init__(self, library: KernelLibrary, descriptor: dict[str, Any], rank: int, fd: int) -> None:
        """Map the file `fd`, whose descriptor was checked, and take the place of `rank`."""
        self.library, self.descriptor = library, descriptor
        self.rank, self.size = rank, int(descriptor["ranks"])
        self.held: int | None = None
        self.is_closed = False
        memory = mapped(fd, descriptor["bytes"])
        if memory[:IDENTITY_BYTES].hex() != descriptor["identity"]:
            raise CollectiveError("the memory of the ranks is not this host's")
        deadline = descriptor["deadline"]
        self.group = SharedGroup(library.library, memory, rank, self.size, deadline, CollectiveError)
        library.join(self.group)

    @classmethod
    def create(
        cls, library: KernelLibrary, ranks: int, size: int, deadline: float = DEADLINE
    ) -> "SharedMemoryCommunicator":
        """Make the memory, of `size` bytes (see exchange_bytes), as rank 0. The others open `descriptor`, plain values,
        while this process lives and has not closed it. A rank that keeps the others waiting longer than `deadline`
        seconds has failed."""
        fd = os.memfd_create("pontil-ranks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        descriptor = {
            "kind": KIND,
            "pid": os.getpid(),
            "fd": fd,
            "identity": secrets.token_hex(IDENTITY_BYTES),
            "ranks": ranks,
            "bytes": size,
            "deadline": deadline,
        }
        try:
            write_header(fd, descriptor)
            communicator = cls(library, descriptor, 0, fd)
        except CollectiveError:
            os.close(fd)
            raise
        communicator.held = fd
        return communicator

    @classmethod
    def open(cls, library: KernelLibrary, descriptor: dict[str, Any], rank: int) -> "SharedMemoryCommunicator":
        """Map the memory that rank 0 described. Raises CollectiveError, also for a descriptor that is not usable."""
        fields = usable(descriptor)
        if not 0 < rank < fields["ranks"]:
            raise CollectiveError(f"this worker has {fields['ranks']} ranks, and {rank} is none of the others")
        fd = opened(fields)
        try:
            return cls(library, fields, rank, fd)
        finally:
            os.close(fd)

    def meet(self) -> None:
        """Do nothing: the memory is mapped already, and cores wait for each other at the next call."""

    def barrier(self) -> None:
        self.group.meet()

    def gather_columns(self, part: Tensor) -> Tensor:
        part = part.contiguous()
        result = torch.empty(part.shape[0], self.size * part.shape[1], dtype=part.dtype)
        self.group.gather(part, result)
        return result

    def choose_rows(self, x: Tensor, owner: Tensor) -> Tensor:
        assert owner.shape == x.shape[:1] and owner.dtype == torch.int64
        x = x.contiguous()
        result = torch.empty_like(x)
        self.group.choose(x, owner.contiguous(), result)
        return result

    def all_to_all(self, x: Tensor, counts: Counts) -> Tensor:
        assert len(x) == sum(counts[self.rank])
        result = x.new_empty(sum(one[self.rank] for one in counts), x.shape[1])
        self.group.all_to_all(x.contiguous(), torch.tensor(counts, dtype=torch.int64), result)
        return result

    def all_reduce(self, part: Tensor, in_order: bool) -> Tensor:
        """Add them on each rank. Layers that kernels compute add in their own memory instead (csrc/layer.h)."""
        return added(self.gather_columns(part.reshape(1, -1)).view(self.size, *part.shape))

    def broadcast(self, x: Tensor) -> None:
        row = x.view(1, -1)
        self.group.choose(row, torch.zeros(1, dtype=torch.int64), row)

    def drop_at_close(self, recordings: Recordings) -> None:
        """Do nothing: steps on cores are not recorded."""

    def close(self) -> None:
        """Leave the group. The memory ends with the last rank that has it mapped."""
        if not self.is_closed:
            self.library.join(None)
            self.group.close()
            self.is_closed = True
        if self.held is not None:
            os.close(self.held)
            self.held = None


def write_header(fd: int, descriptor: dict[str, Any]) -> None:
    """Give a new file its size, for good, and its identity."""
    size = descriptor["bytes"]
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        os.pwrite(fd, bytes.fromhex(descriptor["identity"]), 0)
    except OSError as error:
        raise CollectiveError(f"{size >> 20} MiB for the ranks cannot be had ({error.strerror})") from None


def opened(descriptor: dict[str, Any]) -> int:
    """Open the file of the process that the descriptor names."""
    path = f"/proc/{descriptor['pid']}/fd/{descriptor['fd']}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CollectiveError(
            f"the memory of the ranks cannot be opened ({error.strerror}): is rank 0 on this host?"
        ) from None
    if os.fstat(fd).st_size != descriptor["bytes"]:
        os.close(fd)
        raise CollectiveError("the memory of the ranks has another size than rank 0 said")
    return fd


def mapped(fd: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size)
    except (OSError, ValueError) as error:
        raise CollectiveError(f"{size >> 20} MiB for the ranks cannot be mapped ({error})") from None


def usable(descriptor: dict[str, Any]) -> dict[str, Any]:
    """The values of a descriptor, each of its type and within its bounds. Raises CollectiveError."""
    ranks = whole(descriptor, "ranks", MOST_RANKS)
    return {
        "kind": KIND,
        "pid": whole(descriptor, "pid", C_INT),
        "fd": whole(descriptor, "fd", C_INT),
        "identity": secret(descriptor, "identity", IDENTITY_BYTES).hex(),
        "ranks": ranks,
        "bytes": whole(descriptor, "bytes", 1 << 46),
        "deadline": positive(descriptor, "deadline"),
    }
