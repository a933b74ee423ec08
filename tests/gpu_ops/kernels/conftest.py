# SPDX-License-Identifier: Apache-2.0
"""The kernels of each instruction set, and those of this processor on one thread and on three."""

import kernels
import pytest

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
