# SPDX-License-Identifier: Apache-2.0
"""The kernels for this machine, cached where a launch caches them, so that they are compiled once for all tests, and
checked once by each process that runs some."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pontil.gpu_ops.kernels import kernel_set
from pontil.gpu_ops.kernels.check import fault
from pontil.gpu_ops.kernels.compile.build import KernelError
from pontil.gpu_ops.kernels.compile.instruction_sets import INSTRUCTION_SETS
from pontil.gpu_ops.kernels.kernel_set import open_kernels
from pontil.gpu_ops.kernels.library import KernelLibrary

CACHE = Path.home() / ".cache" / "pontil"
NAMES = tuple(one.name for one in INSTRUCTION_SETS)
Check = Callable[[KernelLibrary], str | None]


def once(check: Check) -> Check:
    """Return a check of kernels that looks at each file with so many threads once: hundreds of tests open workers of
    their own, and a name says what it was compiled from."""
    found: dict[tuple[str, int], str | None] = {}

    def known(library: KernelLibrary) -> str | None:
        key = (library.library._name, library.threads)
        if key not in found:
            found[key] = check(library)
        return found[key]

    return known


setattr(kernel_set, fault.__name__, once(fault))


def opened(name: str = "auto", threads: int = 1) -> KernelLibrary:
    """Open the kernels; skips the test where this machine cannot run or compile them."""
    try:
        library = open_kernels(name, threads, CACHE)
    except KernelError as error:
        pytest.skip(f"no {name} kernels: {error}")
    if library is None:
        pytest.skip("no kernels here: no C++ compiler")
    return library
