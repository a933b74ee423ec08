# SPDX-License-Identifier: Apache-2.0
"""Memory for packed weights: one allocation after the other, on huge pages where the system has them.

Weights are read from end to end in every step, in the order in which they were packed. Most are smaller than a huge
page, so they share pages.
"""

import math
import mmap
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
CHUNK = 16 * HUGE_PAGE
CACHE_LINE = 64


class Arena:
    """An allocator without a free operation: a chunk is released when no tensor in it is used any more. `grow` makes
    memory of at least so many bytes, all zeros."""

    def __init__(self, grow: Callable[[int], Tensor] | None = None) -> None:
        self.grow = grow or fresh
        self.chunk = torch.empty(0, dtype=torch.uint8)
        self.used = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros of this shape, at the beginning of a cache line."""
        size = math.prod(shape) * dtype.itemsize
        if size > len(self.chunk) - self.used:
            if size > CHUNK // 2:
                return self.grow(size)[:size].view(dtype).view(shape)
            self.chunk, self.used = self.grow(CHUNK), 0
        piece = self.chunk[self.used : self.used + size]
        self.used += size + -size % CACHE_LINE
        return piece.view(dtype).view(shape)

    def copy(self, values: Tensor) -> Tensor:
        return self.take(values.shape, values.dtype).copy_(values)


def fresh(size: int) -> Tensor:
    """uint8 [size] at the beginning of a huge page. Pages that are not touched take no memory."""
    memory = mmap.mmap(-1, size + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + size]
