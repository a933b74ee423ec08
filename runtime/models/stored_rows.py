# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows stay in less than 16 bits, and become numbers when they are looked up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.products.scaled_weights import StoredWeights


class BlockType(Protocol):
    """A type of blocks, of so many `numbers` in `size` bytes each. `read` has uint8 [blocks, size] become float32
    [blocks, numbers]."""

    @property
    def numbers(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def read(self) -> Callable[[Tensor], Tensor]: ...


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows uint8 [rows, bytes]. One that is looked up has the bits of a table that was read into `dtype` whole."""

    blocks: Tensor
    kind: BlockType
    dtype: torch.dtype

    def __getitem__(self, ids: Tensor) -> Tensor:
        columns = self.blocks.shape[1] // self.kind.size * self.kind.numbers
        if not ids.numel():
            # Readers divide blocks into groups, for which there must be some.
            return torch.empty(*ids.shape, columns, dtype=self.dtype)
        found = self.kind.read(self.blocks[ids].view(-1, self.kind.size))
        return found.view(*ids.shape, columns).to(self.dtype)


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """Rows on a device, as kernels there multiply them: the head of a model may be the same memory."""

    weights: StoredWeights
    dtype: torch.dtype

    def __getitem__(self, ids: Tensor) -> Tensor:
        return self.weights.part(ids.flatten(), self.dtype).view(*ids.shape, -1)


Table = Tensor | StoredRows | DeviceRows
