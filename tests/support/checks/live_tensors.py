# SPDX-License-Identifier: Apache-2.0
"""The bytes of tensors that are alive at once."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Counts the memory that operations allocate while it is entered, and notes the `peak`. Mapped files are not
    counted, and neither is what an operation allocates and frees."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        before = {
            one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)
        }
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor):
                self.note(one.untyped_storage(), before)
        return made

    def note(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if size and place not in before and place not in self.known:
            self.known.add(place)
            self.alive += size
            self.peak = max(self.peak, self.alive)
            weakref.finalize(storage, self.forget, place, size)

    def forget(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.alive -= size


def storages(values: Any) -> list[torch.UntypedStorage]:
    return [one.untyped_storage() for one in tree_leaves(values) if isinstance(one, torch.Tensor)]
