# SPDX-License-Identifier: Apache-2.0
"""KV memory as on a GPU, without one: the engine's memory differs from that which peers map, another process opens it
by a handle, and only copies cross between the two."""

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from pontil.runtime.cache.device_memory import HANDLE_BYTES
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.publisher import DevicePublisher, Done, PublishedBlocks

HANDLE = struct.Struct("<qq")


class EmulatedMemory:
    """A device's memory in files without a name, each behind a handle. It has nothing to wait for; `marks` counts the
    moments that were asked for, and `waits` those that were waited for."""

    def __init__(self) -> None:
        self.files: dict[int, int] = {}
        self.opened: list[Tensor] = []
        self.marks = self.waits = 0

    def allocate(self, size: int) -> Tensor:
        fd = os.memfd_create("device", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        made = torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)
        self.files[made.data_ptr()] = fd
        return made

    def free(self, memory: Tensor) -> None:
        os.close(self.files.pop(memory.data_ptr()))

    def export(self, memory: Tensor) -> bytes:
        return HANDLE.pack(os.getpid(), self.files[memory.data_ptr()]).ljust(HANDLE_BYTES, b"\0")

    def open(self, handle: bytes, size: int) -> Tensor:
        pid, fd = HANDLE.unpack_from(handle)
        found = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(found).st_size != size:
                raise OSError("it has another size")
            made = torch.frombuffer(mmap.mmap(found, size), dtype=torch.uint8)
        finally:
            os.close(found)
        self.opened.append(made)
        return made

    def close(self, opened: Tensor) -> None:
        self.opened = [one for one in self.opened if one is not opened]

    def pci_address(self) -> str | None:
        return None

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    @contextmanager
    def after(self, mark: int) -> Iterator[None]:
        assert 0 < mark <= self.marks
        yield
        self.waits += 1

    def __del__(self) -> None:
        for fd in self.files.values():
            os.close(fd)


class StagedStorage(KVStorage):
    """Storage in an emulated device's memory."""

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device, *, first_epoch: int = 0) -> None:
        memory = EmulatedMemory() if device.type == "cpu" else None
        super().__init__(layout, num_blocks, device, memory, first_epoch=first_epoch)


class PublisherAtOnce(DevicePublisher):
    """Publisher that works in the caller's thread."""

    def publish(self, wanted: PublishedBlocks, done: Done) -> None:
        done(self.publish_now(self.memory.mark(), wanted) if wanted.blocks else [])

    def forget(self, blocks: Sequence[int]) -> None:
        self.clear(blocks)


# Memory that the engine computes in: the shared memory itself, an emulated device's, and a real one's if there is one.
MEMORIES: dict[str, tuple[type[KVStorage], str]] = {
    "host": (KVStorage, "cpu"),
    "staged": (StagedStorage, "cpu"),
    **({"cuda": (KVStorage, "cuda")} if torch.cuda.is_available() else {}),
}


def storage_in(memory: str, layout: KVLayout, num_blocks: int) -> KVStorage:
    kind, device = MEMORIES[memory]
    return kind(layout, num_blocks, torch.device(device))


def as_bytes(blocks: torch.Tensor) -> torch.Tensor:
    """Return blocks of the engine's tensor as bytes [block, bytes] in host memory."""
    return blocks.cpu().contiguous().view(torch.uint8).flatten(1)
