# SPDX-License-Identifier: Apache-2.0
"""Memory that runs out at chosen allocations."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class FailingMemory(TorchDispatchMode):
    """Counts what operations allocate, and fails those with the numbers `failing`, from 0, as a GPU's allocator does.
    Operations that write to memory that is there, or view it, cannot fail."""

    def __init__(self, failing: Collection[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.failing = failing
        self.allocations = self.failures = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {one.untyped_storage()._cdata for one in tensors_in((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        if any(one.untyped_storage()._cdata not in before for one in tensors_in(result)):
            self.allocations += 1
            if self.allocations - 1 in self.failing:
                self.failures += 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return result


def tensors_in(tree: Any) -> list[Tensor]:
    return [one for one in tree_flatten(tree)[0] if isinstance(one, Tensor) and not one.is_mkldnn]
