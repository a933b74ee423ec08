# SPDX-License-Identifier: Apache-2.0
"""The kernels for this machine, cached where a launch caches them, so that they are compiled once for all tests."""

from pathlib import Path

import pytest

from pontil.gpu_ops.kernels.compile.build import KernelError
from pontil.gpu_ops.kernels.compile.instruction_sets import INSTRUCTION_SETS
from pontil.gpu_ops.kernels.kernel_set import open_kernels
from pontil.gpu_ops.kernels.library import KernelLibrary

CACHE = Path.home() / ".cache" / "pontil"
NAMES = tuple(one.name for one in INSTRUCTION_SETS)


def opened(name: str = "auto", threads: int = 1) -> KernelLibrary:
    """Open the kernels; skips the test where this machine cannot run or compile them."""
    try:
        library = open_kernels(name, threads, CACHE)
    except KernelError as error:
        pytest.skip(f"no {name} kernels: {error}")
    if library is None:
        pytest.skip("no kernels here: no C++ compiler")
    return library
