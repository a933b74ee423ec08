# SPDX-License-Identifier: Apache-2.0
"""The memory of devices that are not there: counted, as torch's allocator for GPUs takes it and gives it back."""

from dataclasses import dataclass
from weakref import WeakSet

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(eq=False)
class RecordedMemory:
    """The memory that recordings share."""

    bytes: int = 0


class DeviceRoom:
    """The memory of a device, which tensors take while they live. `peak` is the most since it was last set."""

    def __init__(self, most: int) -> None:
        self.most, self.peak = most, 0
        self.held: list[tuple[StorageWeakRef, int]] = []
        # While a recording has one.
        self.pools: WeakSet[RecordedMemory] = WeakSet()

    def taken(self) -> int:
        self.held = [one for one in self.held if not one[0].expired()]
        now = sum(size for _, size in self.held) + sum(pool.bytes for pool in self.pools)
        self.peak = max(self.peak, now)
        return now

    @property
    def info(self) -> tuple[int, int]:
        """The bytes that are free, and all of them."""
        return self.most - self.taken(), self.most

    def take(self, one: Tensor) -> None:
        """Take memory for a tensor. Raises torch.OutOfMemoryError."""
        storage = one.untyped_storage()
        self.held.append((StorageWeakRef(storage), storage.nbytes()))
        if self.taken() > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory: the pretend device has no more")
