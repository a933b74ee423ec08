# SPDX-License-Identifier: Apache-2.0
"""The speeds at which some cores of this machine read memory and multiply, measured in well under a second with the
kernels that workers use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from pontil.gpu_ops.kernels.check import forms
from pontil.gpu_ops.kernels.compile.build import KernelError
from pontil.gpu_ops.kernels.kernel_set import AUTO, open_kernels
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.matrix import pack
from pontil.runtime.cache.storage import TORCH_DTYPES
from pontil.runtime.loaders.gguf.packed_formats import NumberFormat
from pontil.runtime.probe.host_memory import host_room

# Larger than the caches that a few cores share, and no more than a part of what is left.
MOST_READ, SHARE_READ = 256 << 20, 8
READS, PRODUCTS = 4, 4
ROWS, OUTPUTS, INPUTS = 128, 1024, 1536
FORMS = {(144, 4): "blocks of 4 bits", (212, 8): "blocks of 6 bits"}


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes read a second, and multiply-adds a second of a product of many rows, with so many `cores`."""

    read: float
    multiply: float
    cores: int
    kernels: str


@contextmanager
def kernels_on(cores: Sequence[int], cache: Path, wanted: bool) -> Iterator[KernelLibrary | None]:
    """Open the kernels with a thread for each of the cores, where this thread stays meanwhile; None for torch's
    operations."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    try:
        os.sched_setaffinity(0, set(cores) & before or before)
        try:
            library = open_kernels(AUTO, len(cores), cache) if wanted else None
        except KernelError:
            library = None
        torch.set_num_threads(1 if library else len(cores))
        yield library
        if library is not None:
            library.close()
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, before)


def measure_rates(cores: Sequence[int], cache: Path, wanted: bool, dtype: str, form: NumberFormat) -> Rates:
    """Measure both rates for weights of this type, most of which have this format."""
    with torch.inference_mode(), kernels_on(cores, cache, wanted) as library:
        name = "torch's operations" if library is None else f"the kernels {library.name.partition('-')[0]}"
        return Rates(reading(library), multiplying(library, dtype, form), len(cores), name)


def reading(library: KernelLibrary | None) -> float:
    size = max(1 << 20, min(MOST_READ, host_room().bytes // SHARE_READ) // 4096 * 4096)
    memory = torch.ones(size // 4)
    return size / best(READS, memory.sum if library is None else lambda: library.read(memory))


def multiplying(library: KernelLibrary | None, dtype: str, form: NumberFormat) -> float:
    x = torch.randn(ROWS, INPUTS)
    number_type = TORCH_DTYPES[dtype]
    call: Callable[[], object]
    if library is None:
        plain, rows = torch.randn(OUTPUTS, INPUTS).to(number_type), x.to(number_type)
        call = lambda: rows @ plain.T  # noqa: E731
    else:
        name = form_name(form)
        weight = torch.randn(OUTPUTS, INPUTS).to(number_type)
        matrix = pack(weight if name is None else dict(forms(OUTPUTS, INPUTS))[name])
        call = lambda: library.linear(matrix, x)  # noqa: E731
    return ROWS * OUTPUTS * INPUTS / best(PRODUCTS, call)


def form_name(form: NumberFormat) -> str | None:
    """Return the name that the check of kernels has for numbers of this format; None for plain ones."""
    if form.group is None:
        return None
    if form.floats:
        return "floats of 8 bits"
    if form.table is not None:
        return "a table"
    return FORMS.get((form.block_bytes or 0, form.bits), f"numbers of {form.bits} bits")


def best(times: int, call: Callable[[], object]) -> float:
    """Return the least seconds of some calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return max(min(found), 1e-9)
