# SPDX-License-Identifier: Apache-2.0
"""The choice of a communicator: shared memory where the kernels compute, torch.distributed elsewhere."""

from typing import Any

import torch

from pontil.gpu_ops.collectives import shared_memory, torch_distributed
from pontil.gpu_ops.collectives.communicator import CollectiveError, Communicator, SingleRank
from pontil.gpu_ops.collectives.shared_memory import DEADLINE, SharedMemoryCommunicator
from pontil.gpu_ops.collectives.torch_distributed import TorchCommunicator
from pontil.gpu_ops.kernels.library import KernelLibrary

# Libraries for GPUs find each other, and choose their ways, in up to a minute.
MEET_WITHIN = 300.0


def create_communicator(
    library: KernelLibrary | None,
    device: torch.device,
    ranks: int,
    size: int,
    store: str,
    deadline: float = DEADLINE,
    meet_within: float = MEET_WITHIN,
) -> Communicator:
    """Be rank 0 of a worker of so many ranks, the others of which open the result's `descriptor`.

    With kernels, all of them are on this host, and `size` bytes are shared (see shared_memory.exchange_bytes); else
    they find each other at `store`, a file:///PATH or tcp://HOST:PORT that is this worker's own. `deadline` is for each
    call, `meet_within` for `meet`, both in seconds. Raises CollectiveError.
    """
    if ranks == 1:
        return SingleRank()
    if library is not None:
        return SharedMemoryCommunicator.create(library, ranks, size, deadline)
    return TorchCommunicator.create(device, ranks, store, deadline, meet_within)


def open_communicator(
    library: KernelLibrary | None, device: torch.device, descriptor: dict[str, Any], rank: int
) -> Communicator:
    """Be another rank, with the descriptor of rank 0. Raises CollectiveError."""
    kind = torch_distributed.KIND if library is None else shared_memory.KIND
    if descriptor.get("kind") != kind:
        raise CollectiveError("the ranks of this worker do not all compute with the same kernels")
    if library is not None:
        return SharedMemoryCommunicator.open(library, descriptor, rank)
    return TorchCommunicator.open(device, descriptor, rank)
