# SPDX-License-Identifier: Apache-2.0
"""The communicator of a worker's ranks: made by rank 0, joined by the others."""

from typing import Any

from pontil.gpu_ops.collectives.communicator import CollectiveError, Communicator, SingleRank
from pontil.gpu_ops.collectives.shared_memory import SharedMemoryCommunicator
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.config import WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.fused_block import shared_bytes

WITHOUT_KERNELS = (
    "a worker of several ranks on CPU cores needs their kernels: leave out --kernels torch, or join nothing"
)


def create_communicator(
    config: WorkerConfig, model: ModelConfig, kernels: KernelLibrary | None
) -> tuple[Communicator, dict[str, Any]]:
    """Make the communicator as rank 0, and the descriptor by which others join it. Raises ModelError."""
    if config.ranks == 1:
        return SingleRank(), {}
    if kernels is None:
        raise ModelError(WITHOUT_KERNELS)
    try:
        made = SharedMemoryCommunicator.create(kernels, config.ranks, shared_bytes(model))
    except CollectiveError as error:
        raise ModelError(str(error)) from error
    return made, made.descriptor


def join_communicator(config: WorkerConfig, descriptor: dict[str, Any], kernels: KernelLibrary | None) -> Communicator:
    """Join as another rank. Raises ModelError."""
    if kernels is None:
        raise ModelError(WITHOUT_KERNELS)
    try:
        return SharedMemoryCommunicator.open(kernels, descriptor, config.rank)
    except CollectiveError as error:
        raise ModelError(str(error)) from error
