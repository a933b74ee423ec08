# SPDX-License-Identifier: Apache-2.0
"""The ranks of one worker as the kernels know them: processes that share memory and meet in it."""

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

from torch import Tensor

from pontil.gpu_ops.kernels.weights.structures import ELSEWHERE, ENDED, FAULTY, LATE

# Equal to csrc/rank_group.h.
HEADER_BYTES, MOST_RANKS = 12288, 64


class SharedGroup:
    """Rank `rank` of `ranks` processes that mapped the same memory, which was all zeros beyond its first 128 bytes.
    Every rank makes the same calls in the same order; one call at a time.

    A rank that ends, or that does not come within `deadline` seconds, makes this and every later call raise `error`,
    on all ranks, with a sentence that names it.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        memory: mmap.mmap,
        rank: int,
        ranks: int,
        deadline: float,
        error: Callable[[str], Exception],
    ) -> None:
        self.library, self.memory, self.deadline, self.error = library, memory, deadline, error
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.handle: Any = library.pontil_group_open(start, len(memory), rank, ranks, deadline)
        if self.handle is None:
            raise error(f"rank {rank} of {ranks} cannot be taken: another process has it, or its memory is too small")

    def close(self) -> None:
        """Let go of the other processes. No method may be called after this, nor may a library be joined."""
        self.library.pontil_group_close(self.handle)
        self.handle = None

    def meet(self) -> None:
        self.check(self.library.pontil_group_meet(self.handle))

    def gather(self, part: Tensor, result: Tensor) -> None:
        """Write the ranks' parts [rows, columns], side by side, to result [rows, ranks * columns]; both contiguous."""
        rows, size = part.shape[0], part.shape[1] * part.element_size()
        self.check(self.library.pontil_group_gather(self.handle, part.data_ptr(), rows, size, result.data_ptr()))

    def choose(self, x: Tensor, owner: Tensor, result: Tensor) -> None:
        """Write to each row r of the result what x has there on rank owner[r]; x [rows, columns] and owner int64 [rows]
        are contiguous."""
        rows, size = x.shape[0], x.shape[1] * x.element_size()
        self.check(
            self.library.pontil_group_choose(self.handle, x.data_ptr(), rows, size, owner.data_ptr(), result.data_ptr())
        )

    def all_to_all(self, x: Tensor, counts: Tensor, result: Tensor) -> None:
        """Write to the result the rows that come to this rank, in the order of ranks; x [rows, columns] has those that
        go from it, in the order of ranks, and counts int64 [ranks, ranks] how many go from each to each; all are
        contiguous."""
        size = x.shape[1] * x.element_size()
        self.check(
            self.library.pontil_group_all_to_all(self.handle, x.data_ptr(), counts.data_ptr(), size, result.data_ptr())
        )

    def check(self, status: int) -> None:
        """Raise the error that a call's status stands for."""
        if status == FAULTY:
            fault: int = self.library.pontil_group_fault(self.handle)
            raise self.error(self.sentence(fault >> 32, fault & 0xFFFFFFFF))
        if status:
            raise self.error("the memory that the ranks share is too small for these rows")

    def sentence(self, fault: int, rank: int) -> str:
        texts = {
            ENDED: "has ended",
            LATE: f"did not arrive within {self.deadline:g} s",
            ELSEWHERE: "computes something else",
        }
        return f"rank {rank} {texts[fault]}"
