# SPDX-License-Identifier: Apache-2.0
"""The interface between a step's host code and the device that computes it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pontil.gpu_ops.device_mark import DeviceMark

Words = NDArray[np.int32]
# The first of so many steps may still be copied when the last is written: each has host memory of its own.
STEPS_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class HostWords:
    """Memory of the host that a device can copy from or to while the host goes on: `words` int32, and the same memory
    as a tensor."""

    words: Words
    tensor: Tensor


class Arrival(Protocol):
    """Results on their way to the host."""

    def wait(self) -> Words:
        """Wait until they have arrived; the words are valid until as many further fetches as there are host buffers.
        Raises DeviceLate."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A recorded piece of work: `replay` starts it again from what its inputs' addresses hold then, and overwrites its
    `result`. Its memory is of `pool`, which the next recording shares. `drop` gives it up."""

    replay: Callable[[], None]
    drop: Callable[[], None]
    result: Tensor
    pool: Any


class DeviceLink(Protocol):
    """A device, as the host uses it in a step. All calls but `settle` and `Arrival.wait` return at once; what they
    start happens in the order of the calls."""

    device: torch.device

    def host_words(self, count: int) -> HostWords:
        """Return memory of the host for copies."""

    def send(self, source: HostWords, target: Tensor) -> None:
        """Copy the first words of the host's memory to all of `target`, int32 [words]."""

    def fetch(self, source: Tensor, target: HostWords) -> Arrival:
        """Copy `source`, int32 [words], to the first words of the host's memory."""

    def settle(self) -> None:
        """Wait until all that was started is over. Raises DeviceLate."""

    def capture(self, run: Callable[[], Tensor], pool: Any) -> RecordedStep:
        """Record what `run` starts, whose tensors keep their addresses, in the memory of an earlier recording's pool,
        if there is one."""

    def reserved(self) -> int:
        """Return the bytes of the device's memory that this process holds."""


def pinned_words(count: int) -> Tensor:
    """Return int32 zeros in memory of the host that devices copy from and to by themselves."""
    return torch.zeros(count, dtype=torch.int32, pin_memory=True)


class CudaArrival:
    """Words that a stream copies, with the mark behind the copy."""

    def __init__(self, mark: DeviceMark, words: Words) -> None:
        self.mark, self.words = mark, words

    def wait(self) -> Words:
        self.mark.wait()
        return self.words


class CudaLink:
    """A CUDA or ROCm device, on its current stream. It is the calling thread's current device: kernels start there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def host_words(self, count: int) -> HostWords:
        tensor = pinned_words(count)
        return HostWords(tensor.numpy(), tensor)

    def send(self, source: HostWords, target: Tensor) -> None:
        target.copy_(source.tensor[: len(target)], non_blocking=True)

    def fetch(self, source: Tensor, target: HostWords) -> Arrival:
        target.tensor[: len(source)].copy_(source, non_blocking=True)
        return CudaArrival(DeviceMark(self.device), target.words[: len(source)])

    def settle(self) -> None:
        DeviceMark(self.device).wait()

    def capture(self, run: Callable[[], Tensor], pool: Any) -> RecordedStep:
        # The first runs choose kernels and make workspaces, which a recording must not.
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        # A recording begins by waiting for the device, without a deadline.
        self.settle()
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads take memory and wait, of libraries too, which would end a recording of the usual mode.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = run()
        except BaseException:
            # The error's traceback keeps the object, and what was recorded would keep the ranks' connections.
            graph.reset()
            raise
        return RecordedStep(graph.replay, graph.reset, result, graph.pool())

    def reserved(self) -> int:
        return torch.cuda.memory_reserved(self.device)
