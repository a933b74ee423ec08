# SPDX-License-Identifier: Apache-2.0
"""Sums over ranks on NVIDIA GPUs of one host through torch's symmetric memory: every rank writes its part where all can
read it, and a kernel of torch's adds all parts in the order of ranks. For the rows of a decode step that is one kernel,
where a library passes parts round in several steps (torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu).
"""

import logging
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

# With more bytes the library's sums are expected to be sooner: here each rank reads the parts of all.
MOST_BYTES = 512 << 10
# Bytes that the kernel reads at once.
UNIT = 16
TYPES = (torch.bfloat16, torch.float32)

logger = logging.getLogger("pontil.worker")


class SymmetricSums:
    """Sums of parts in memory of MOST_BYTES that all ranks of a group map: each has taken its own, then they met. Calls
    may be recorded."""

    memory: Tensor
    add: Callable[[Tensor, str, str], Tensor]

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device, self.group_name = group, device, group.group_name

    def take(self) -> None:
        """Take this rank's memory, and the op. Raises RuntimeError where there is none, and what Python does without
        this part of torch."""
        from torch.distributed import _symmetric_memory

        self.memory = _symmetric_memory.empty(MOST_BYTES, dtype=torch.uint8, device=self.device)
        self.add = torch.ops.symm_mem.one_shot_all_reduce

    def meet(self) -> None:
        """Map the memory of all ranks, which wait here for each other. Raises RuntimeError where their devices cannot
        map it."""
        from torch.distributed import _symmetric_memory

        _symmetric_memory.rendezvous(self.memory, self.group)

    def can_add(self, part: Tensor) -> bool:
        return part.dtype in TYPES and part.nbytes <= MOST_BYTES and part.nbytes % UNIT == 0

    def __call__(self, part: Tensor) -> Tensor:
        """Return the sums of the ranks' parts, contiguous and of one shape and type. The kernel ends once all have
        read, so that the next part may be written."""
        own_part = self.memory[: part.nbytes].view(part.dtype).view(part.shape)
        own_part.copy_(part)
        return self.add(own_part, "sum", self.group_name)


def open_symmetric(
    group: dist.ProcessGroup,
    device: torch.device,
    rank: int,
    library: Callable[[Tensor], Tensor],
    wait: Callable[[], None],
) -> SymmetricSums | None:
    """Return such sums on all ranks, or None on all: where one of them cannot have them, or finds another sum than that
    of the `library`, which adds in place. `wait` returns once the device has done what was started, and raises
    DeviceLate where a rank does not take part."""

    def of_all(is_so: bool) -> bool:
        answer = library(torch.tensor([0.0 if is_so else 1.0], device=device))
        wait()
        return not bool(answer.item())

    def can_all(step: Callable[[], None]) -> bool:
        try:
            step()
        except (RuntimeError, ImportError, AttributeError) as error:
            logger.info("ranks add without symmetric memory: %s", str(error).partition("\n")[0])
            return of_all(False)
        return of_all(True)

    sums, found = SymmetricSums(group, device), list[Tensor]()
    # Whole numbers, whose sum is the same in any order.
    probe = torch.arange(64, dtype=torch.float32, device=device).view(4, 16) * (rank + 1)

    def call() -> None:
        found.append(sums(probe))
        wait()

    # All go on to the next of these together: they would wait there for one that does not come.
    if not all(can_all(step) for step in (sums.take, sums.meet, call)):
        return None
    expected = library(probe.clone())
    wait()
    right = torch.equal(found[0], expected)
    if not right:
        logger.warning("ranks add without symmetric memory, whose sum is wrong here")
    return sums if of_all(right) else None
