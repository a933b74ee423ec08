# SPDX-License-Identifier: Apache-2.0
"""The connector for workers with GPUs on the same host: it opens the peer's GPU memory, and copies from GPU to GPU.

The copies and the digests run on our GPU, beside the engine's steps. The epoch cells are in the peer's host memory: the
peer writes one before it starts anything that reuses the blocks, and it is read here once the copy is complete.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pontil.runtime.cache.device_memory import HANDLE_BYTES, DeviceMemory
from pontil.runtime.cache.storage import KVStorage, epoch_after_data
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import PLAIN_OPTIONS, ConnectorOptions, PullResult
from pontil.runtime.transfer.descriptor import part, secret
from pontil.runtime.transfer.shm.copying_connector import CopyingConnector, CopyJob, cancelled
from pontil.runtime.transfer.shm.peer_pool import PeerPool, describe

KIND = "cuda"
# Blocks that are copied and digested together, between two looks at whether the pull was cancelled.
AT_ONCE = 256


class PeerGpuPool(PeerPool):
    """A peer's pool in a GPU's memory, with its epoch cells in host memory."""

    def __init__(self, descriptor: dict[str, Any], block_bytes: int, heads: range, memory: DeviceMemory) -> None:
        self.memory, self.opened = memory, None
        super().__init__(descriptor, KIND, block_bytes, heads)
        try:
            handle = secret(part(descriptor, KIND), "handle", HANDLE_BYTES)
            self.opened = memory.open(handle, self.num_blocks * block_bytes)
        except (OSError, TransferError) as error:
            self.close()
            raise TransferError(f"the peer's GPU memory cannot be opened: {error}") from None
        self.own: Tensor = self.opened.view(self.num_blocks, block_bytes)

    opened: Tensor | None

    def close(self) -> None:
        super().close()
        if self.opened is not None:
            self.memory.close(self.opened)
            self.opened = None


class CudaConnector(CopyingConnector[PeerGpuPool]):
    """The connector. Only for storage in a GPU's memory."""

    thread_name = "cuda-connector"

    def __init__(self, storage: KVStorage, wake: Callable[[], None], options: ConnectorOptions = PLAIN_OPTIONS) -> None:
        """Raises TransferError."""
        if storage.memory is None:
            raise TransferError("the connector cuda needs workers on GPUs")
        super().__init__(storage, wake, options)

    @property
    def memory(self) -> DeviceMemory:
        assert self.storage.memory is not None
        return self.storage.memory

    def register(self) -> dict[str, Any]:
        return {"kind": KIND, **describe(self.storage), "handle": self.memory.export(self.storage.own.view(-1)).hex()}

    def open_pool(self, descriptor: dict[str, Any], heads: range) -> PeerGpuPool:
        return PeerGpuPool(descriptor, self.storage.slice_bytes(heads), heads, self.memory)

    def staged(self, peer: str) -> bool:
        return peer not in self.peers

    def copy(self, job: CopyJob[PeerGpuPool]) -> PullResult:
        """Copy the blocks of one pull. The thread waits for the GPU, which needs no interpreter lock."""
        start_time, digests = time.monotonic(), list[int]()
        heads, pairs = job.pull.heads or self.storage.layout.kv_heads, job.pull.pairs
        # As words: heads of a block are a multiple of them, and each is moved by itself.
        source = self.storage.heads_of_pool(job.pool.own, job.pool.heads, heads).view(torch.int64)
        target = self.storage.heads_in(self.storage.own, heads).view(torch.int64)
        with self.memory.after(job.mark):
            for start in range(0, len(pairs), AT_ONCE):
                if self.must_end(job):
                    return cancelled(start_time)
                theirs, ours = torch.tensor(pairs[start : start + AT_ONCE]).T.to(self.storage.device)
                target[ours] = source[theirs].view(len(ours), *target.shape[1:])
                digests += self.storage.own_digests(ours.tolist(), heads)
                self.received += len(ours)
        epoch = epoch_after_data(job.pool.epochs, job.pull.slot)
        moved_bytes = len(pairs) * self.storage.slice_bytes(heads)
        return PullResult(None, epoch, moved_bytes, time.monotonic() - start_time, digests)
