# SPDX-License-Identifier: Apache-2.0
"""The bytes of a KV pool, in memory that a worker on the same host can map.

The memory is an anonymous file (memfd): it has no name in any file system, so nothing is left behind however the
process ends. It grows as it is written, by huge pages where the system has them for such files: one fault for 2 MiB
instead of 512. It starts with a header: the epoch cells, one 64-bit number per reservation slot, never reset, then the
random identity of this pool, by which a peer checks that it opened the right memory. The blocks follow. On a CPU the
engine computes directly in this memory. On a GPU it is the staging area for peers that cannot read the GPU: `stage`
copies blocks out to it, `land` copies them in, and `forget` gives its pages back, so that it takes no more memory than
the blocks that are on their way.
"""

import contextlib
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pontil.gpu_ops.kernels.weights.file_memory import FileMemory
from pontil.gpu_ops.kernels.weights.slots import clear_packed
from pontil.gpu_ops.kv.cells import movable
from pontil.gpu_ops.kv.digest import block_digests, digest_weights, digests_of
from pontil.runtime.cache.device_memory import DeviceMemory, memory_of
from pontil.runtime.cache.layout import STATE_BYTES, KVLayout
from pontil.runtime.errors import ModelError

HEADER_BYTES = 32 << 10
IDENTITY_BYTES = 16
EPOCH_SLOTS = (HEADER_BYTES - IDENTITY_BYTES) // 8

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CELL_DTYPES = TORCH_DTYPES | {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def fence() -> None:
    """Keep this thread's memory accesses before the call before those after it, as every other process sees them.

    Python has no barrier except inside its locks: no access passes a release and then an acquire (docs/decisions/035).
    """
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()


def epoch_after_data(epochs: NDArray[np.int64], slot: int) -> int:
    """Read an epoch cell after all data before the call has been read: if a block was reused, the number differs."""
    fence()
    return int(epochs[slot])


def zero(memory: FileMemory, start: int, end: int) -> None:
    """Zero these bytes of a file. Whole pages among them are given back."""
    first, after = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first >= after:
        memory.tensor[start:end] = 0
        return
    memory.tensor[start:first] = 0
    memory.advise(mmap.MADV_REMOVE, first, after - first)
    memory.tensor[after:end] = 0


class KVStorage:
    """`tensor` [page, layer, plane, kv_head, slot, cells of a row] is the engine's memory, and `own` the same as bytes
    uint8 [block, bytes], in which `states` float32 [block, number] are those of recurrent layers; `shared` uint8
    [block, bytes] is what peers map. All start as zeros: stale garbage times a zero weight would poison a sum. `memory`
    is the device's, None on a CPU, where `own` and `shared` are one.

    The pool may be kept in a `file` that an earlier process used, and that peers of that one may still read: it never
    shrinks, and its first epoch is later than any that was in it."""

    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        device: torch.device,
        memory: DeviceMemory | None = None,
        file: int | None = None,
        first_epoch: int = 0,
    ) -> None:
        self.layout, self.num_blocks, self.device = layout, num_blocks, device
        self.memory = memory or memory_of(device)
        self.size = HEADER_BYTES + num_blocks * layout.block_bytes
        self.fd = os.memfd_create("pontil-kv", os.MFD_CLOEXEC) if file is None else file
        weakref.finalize(self, os.close, self.fd)
        try:
            if os.fstat(self.fd).st_size < self.size:
                os.ftruncate(self.fd, self.size)
            self.file = FileMemory(self.size, 0)
            self.file.show(self.fd, writable=True)
        except OSError as error:
            raise ModelError(
                f"{self.size >> 20} MiB of KV memory cannot be had ({error}); lower --kv-cache-memory"
            ) from None
        # Devices of a network address its pages, which must stay where they are.
        self.pinned = False
        # By the number of heads of a slice.
        self.digest_weights: dict[int, NDArray[np.int64]] = {}
        with contextlib.suppress(OSError):
            self.file.advise(mmap.MADV_HUGEPAGE)
        whole = self.file.tensor
        self.epochs = whole[: EPOCH_SLOTS * 8].view(torch.int64)
        # No two cells have the same epoch, and the ranks of a worker begin with the same ones.
        self.epochs.copy_(torch.arange(first_epoch, first_epoch + EPOCH_SLOTS))
        # An earlier process's peers see it before anything that is written from now on.
        fence()
        self.shared = whole[HEADER_BYTES:].view(num_blocks, layout.block_bytes)
        self.bytes = self.shared.numpy()
        self.identity = secrets.token_bytes(IDENTITY_BYTES)
        whole[HEADER_BYTES - IDENTITY_BYTES : HEADER_BYTES] = torch.tensor(list(self.identity), dtype=torch.uint8)
        size = num_blocks * layout.block_bytes
        own_bytes = self.shared.view(-1) if self.memory is None else self.memory.allocate(size)
        self.own = own_bytes.view(num_blocks, layout.block_bytes)
        self.tensor = own_bytes.view(CELL_DTYPES[layout.dtype]).view(
            num_blocks * layout.block_pages, *layout.page_shape
        )
        self.states = states_in(self.own, layout) if layout.has_states else None

    def give_back(self) -> None:
        """Give the device's memory back; nothing may use `own` and `tensor` after it."""
        if self.memory is not None:
            self.memory.free(self.own.view(-1))

    @property
    def staged(self) -> bool:
        """True where `shared` is other memory than the engine's."""
        return self.memory is not None

    def set_epoch(self, slot: int, epoch: int) -> None:
        """Write an epoch that every reader sees before any data that is written to the blocks from now on."""
        self.epochs[slot] = epoch
        fence()

    def stage(self, blocks: Sequence[int]) -> None:
        """Copy these blocks' bytes from the engine's memory to `shared`, where these are two."""
        if self.staged and blocks:
            self.shared[list(blocks)] = self.own[list(blocks)].cpu()

    def mark(self) -> Any:
        """Return the moment behind everything that was started on the device so far; None on a CPU."""
        return None if self.memory is None else self.memory.mark()

    def land(self, blocks: Sequence[int], heads: range | None, mark: Any) -> None:
        """Copy these blocks' bytes, or some of the model's heads in them, from `shared` to the engine's memory behind
        the mark, and forget them, where these are two. For a connector's thread: on return the copy is complete."""
        if self.memory is None or not blocks:
            return
        with self.memory.after(mark):
            target, source = self.heads_in(self.own, heads), self.heads_in(self.shared, heads)
            target[list(blocks)] = source[list(blocks)].to(self.device)
        self.forget(blocks)

    def forget(self, blocks: Iterable[int]) -> None:
        """Give back the memory of these blocks in `shared`, where the engine's is another: they read as zeros. The
        pages that blocks share with neighbours stay."""
        if self.memory is None:
            return
        for block in blocks:
            start = HEADER_BYTES + block * self.layout.block_bytes
            first, end = -(-start // mmap.PAGESIZE), (start + self.layout.block_bytes) // mmap.PAGESIZE
            if first < end:
                self.file.advise(mmap.MADV_REMOVE, first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE)

    def erase(self, blocks: Iterable[int]) -> None:
        """Zero these blocks, in ascending order, and give back the memory of whole pages, unless they are pinned. For a
        pool in host memory."""
        for first, after in runs_of(blocks):
            if self.pinned:
                self.shared[first:after] = 0
                continue
            size = self.layout.block_bytes
            zero(self.file, HEADER_BYTES + first * size, HEADER_BYTES + after * size)

    def heads_in(self, pool: Tensor, heads: range | None) -> Tensor:
        """View some of the model's heads in a pool like ours uint8 [block, bytes]: uint8 [block, layer and plane,
        bytes]; the pool itself if they are all that it holds."""
        return self.heads_of_pool(pool, self.layout.kv_heads, heads)

    def heads_of_pool(self, pool: Tensor, held: range, heads: range | None) -> Tensor:
        """The same of a pool that holds the heads `held`, ours or a peer's."""
        size = self.layout.head_bytes
        if heads is None or heads == held:
            return pool
        first = (heads.start - held.start) * size
        return pool.view(len(pool), self.layout.runs, -1)[:, :, first : first + len(heads) * size]

    def digests(self, blocks: Iterable[int], heads: range | None = None) -> list[int]:
        """Digest each block in `shared`, or some of the model's heads in it. Thread-safe. Pools with other heads
        besides these have the same digests."""
        kv_heads = self.layout.kv_heads
        pool = self.bytes if heads is None or heads == kv_heads else self.slices(self.bytes, kv_heads, heads)
        return block_digests(pool, blocks, self.weights_of(len(heads or kv_heads)))

    def own_digests(self, blocks: Sequence[int], heads: range | None = None) -> list[int]:
        """`digests` of what the engine's memory holds. Waits for the device."""
        if not blocks:
            return []
        weights = torch.from_numpy(self.weights_of(len(heads or self.layout.kv_heads))).to(self.device)
        numbers = torch.tensor(blocks, dtype=torch.int64).to(self.device)
        digests: list[int] = digests_of(self.heads_in(self.own, heads), numbers, weights).tolist()
        return digests

    def weights_of(self, heads: int) -> NDArray[np.int64]:
        """The weights for digests of so many heads."""
        if heads not in self.digest_weights:
            run = heads * self.layout.head_bytes // 8
            words = self.layout.runs * run
            self.digest_weights[heads] = digest_weights(words, words if heads == self.layout.num_kv_heads else run)
        return self.digest_weights[heads]

    def slice_bytes(self, heads: range) -> int:
        """Bytes of these heads in one block."""
        return self.layout.runs * len(heads) * self.layout.head_bytes

    def slices(self, pool: NDArray[np.uint8], held: range, heads: range) -> NDArray[np.uint8]:
        """View some heads in a pool of blocks uint8 [block, bytes] that holds the heads `held`, ours or a peer's:
        uint8 [block, layer and plane, bytes]."""
        size = self.layout.head_bytes
        rows = pool.reshape(len(pool), self.layout.runs, len(held) * size)
        return rows[:, :, (heads.start - held.start) * size : (heads.stop - held.start) * size]

    def clear_tail(self, block: int, filled: int) -> None:
        """Zero the slots of a block from `filled` on, so that an earlier owner's data is never sent."""
        first = block * self.layout.block_pages
        inside, behind = divmod(filled, self.layout.page_size)
        movable(self.tensor)[first + inside + 1 : first + self.layout.kv_pages] = 0
        if self.layout.packed:
            clear_packed(self.tensor[first + inside], behind)
        else:
            movable(self.tensor)[first + inside, :, :, :, behind:] = 0

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each. All are read before any is written."""
        if pairs:
            sources, targets = zip(*pairs, strict=True)
            self.own[list(targets)] = self.own[list(sources)]


def states_in(pool: Tensor, layout: KVLayout) -> Tensor:
    """View the states in a pool of bytes uint8 [block, bytes]: float32 [block, number]."""
    first = layout.kv_pages * layout.page_bytes
    return pool[:, first : first + layout.state_numbers * STATE_BYTES].view(torch.float32)


def runs_of(blocks: Iterable[int]) -> list[list[int]]:
    """Return [first, behind the last] of each run of neighbours among blocks in ascending order."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block:
            runs[-1][1] += 1
        else:
            runs.append([block, block + 1])
    return runs
