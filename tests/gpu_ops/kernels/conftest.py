# SPDX-License-Identifier: Apache-2.0
"""The kernels of each instruction set, also with an emulated matrix unit, and those of this
processor on one thread and on three."""

import kernels
import pytest

from pontil.gpu_ops.kernels.compile.build import build
from pontil.gpu_ops.kernels.compile.instruction_sets import InstructionSet, usable_sets
from pontil.gpu_ops.kernels.kernel_set import load
from pontil.gpu_ops.kernels.library import KernelLibrary


@pytest.fixture(scope="module", params=kernels.NAMES)
def library(request: pytest.FixtureRequest) -> KernelLibrary:
    return kernels.opened(request.param)


@pytest.fixture(scope="module")
def one_thread() -> KernelLibrary:
    return kernels.opened()


@pytest.fixture(scope="module")
def three_threads() -> KernelLibrary:
    return kernels.opened(threads=3)


@pytest.fixture(scope="module", params=[*kernels.NAMES, "emulated tiles"])
def any_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KernelLibrary:
    if request.param in kernels.NAMES:
        return kernels.opened(request.param)
    # The emulated matrix unit, on machines that have none.
    fastest = next(one for one in usable_sets() if "-DPONTIL_TILES" not in one.flags)
    flags = (*fastest.flags, "-DPONTIL_TILES", "-DPONTIL_EMULATED_TILES", "-O1")
    kernels.opened(fastest.name).close()
    path = build(InstructionSet("emulated", frozenset(), flags), kernels.CACHE / "kernels", lambda text: None)
    return load(path, "emulated", 1)
