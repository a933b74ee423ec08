# SPDX-License-Identifier: Apache-2.0
"""A tiny Qwen3-Omni in transformers and as a directory, and the ways to compute it."""

from collections.abc import Iterator

import kernels
import pytest
import torch
from tiny_omni import OmniPair, write_tiny_omni

from pontil.gpu_ops.kernels.library import KernelLibrary


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for one another take most of the time of operations as small as these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> OmniPair:
    path = tmp_path_factory.mktemp("omni")
    return OmniPair(write_tiny_omni(path), path)


@pytest.fixture(scope="session", params=["torch", "own"])
def library(request: pytest.FixtureRequest) -> Iterator[KernelLibrary | None]:
    """The kernels, and None for torch's operations."""
    yield kernels.opened() if request.param == "own" else None
