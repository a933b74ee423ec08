# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements whose bits do not depend on where an element stands.

On a CPU, torch splits a tensor evenly among its threads and computes each share in whole vectors; what is left over at
the end of a share goes through scalar code, which may round exp and its kin differently. Here every share is a whole
number of vectors, so that nothing is left over.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

# Two vectors of the widest registers, of the narrowest type: what one turn of torch's loops takes.
UNIT = 64
# What a thread gets at least (at::internal::GRAIN_SIZE).
GRAIN = 32768


def apply(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function(x)` for a function of single elements."""
    threads = torch.get_num_threads()
    if x.device.type != "cpu" or (x.shape[-1] % UNIT == 0 and is_even(x.numel(), threads)):
        return function(x)
    flat = x.new_zeros(even_size(x.numel(), threads))
    flat[: x.numel()].view(x.shape).copy_(x)
    return function(flat)[: x.numel()].view(x.shape)


def is_even(size: int, threads: int) -> bool:
    """Whether every thread's share of so many elements is a whole number of units: where as many threads work as there
    are grains, and where all of them do, as for gelu."""
    grains = -(-size // GRAIN)
    return all(-(-size // shares) % UNIT == 0 for shares in (1, min(threads, grains), threads))


@lru_cache(maxsize=4096)
def even_size(size: int, threads: int) -> int:
    """The next larger number of elements that is shared out evenly."""
    size += -size % UNIT
    while not is_even(size, threads):
        size += UNIT
    return size
