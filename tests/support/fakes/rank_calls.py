# SPDX-License-Identifier: Apache-2.0
"""Functions that rank processes call in tests."""

import math
import os
import time
from typing import Any

import kernels
import torch
from divided_layer import DividedLayer
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import CollectiveError
from pontil.gpu_ops.collectives.factory import create_communicator, open_communicator
from pontil.gpu_ops.collectives.shared_memory import SharedMemoryCommunicator
from pontil.runtime.models.partition import Partition

State = dict[str, Any]


def create(state: State, ranks: int, size: int, deadline: float) -> dict[str, Any]:
    """Be rank 0 of a new group; return its descriptor."""
    leave(state)
    state["communicator"] = SharedMemoryCommunicator.create(library(state), ranks, size, deadline)
    descriptor: dict[str, Any] = state["communicator"].descriptor
    return descriptor


def join(state: State, descriptor: dict[str, Any], rank: int) -> None:
    leave(state)
    state["communicator"] = SharedMemoryCommunicator.open(library(state), descriptor, rank)


def leave(state: State) -> None:
    if (known := state.pop("communicator", None)) is not None:
        known.close()


def library(state: State, threads: int = 1) -> Any:
    if "library" not in state:
        state["library"] = kernels.opened(threads=threads)
    return state["library"]


def create_over_torch(state: State, ranks: int, store: str, deadline: float) -> dict[str, Any]:
    """Be rank 0 of a group that meets at this store."""
    leave(state)
    state["communicator"] = create_communicator(None, torch.device("cpu"), ranks, 0, store, deadline, deadline)
    descriptor: dict[str, Any] = state["communicator"].descriptor
    return descriptor


def join_over_torch(state: State, descriptor: dict[str, Any], rank: int) -> None:
    leave(state)
    state["communicator"] = open_communicator(None, torch.device("cpu"), descriptor, rank)


def meet(state: State) -> None:
    state["communicator"].meet()


def barrier(state: State, times: int = 1) -> str:
    for _ in range(times):
        state["communicator"].barrier()
    return "met"


def compute(state: State, layer: DividedLayer) -> tuple[list[Tensor], Tensor]:
    communicator = state["communicator"]
    return layer.computed(state["library"], Partition(communicator.rank, communicator.size))


def gather(state: State, parts: list[Tensor]) -> Tensor:
    result: Tensor = state["communicator"].gather_columns(parts[state["communicator"].rank])
    return result


def choose(state: State, parts: list[Tensor], owner: Tensor) -> Tensor:
    result: Tensor = state["communicator"].choose_rows(parts[state["communicator"].rank], owner)
    return result


def all_to_all(state: State, given: list[Tensor], counts: list[list[int]]) -> Tensor:
    result: Tensor = state["communicator"].all_to_all(given[state["communicator"].rank], counts)
    return result


def broadcast(state: State, parts: list[Tensor]) -> Tensor:
    result: Tensor = parts[state["communicator"].rank].clone()
    state["communicator"].broadcast(result)
    return result


def busy_for(state: State) -> float:
    """Wait for the others; return the processor's seconds that this took."""
    begun = time.process_time()
    try:
        state["communicator"].barrier()
    except CollectiveError:
        return time.process_time() - begun
    return math.inf


def pin(state: State, cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)
