# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of some of a product's rows, by torch: the reference for kernels."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from pontil.gpu_ops.parameters.adapters import NO_ADAPTER, LowRank, MadeAdapter
from pontil.gpu_ops.products.full_tiles import in_full_tiles


class RowAdapters:
    """The rows of the tile that a model computes now, grouped by the numbers of their adapters."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, Tensor]] = []

    def choose(self, numbers: Sequence[int]) -> None:
        """Set the adapter of each row; rows behind these have none."""
        numbered_rows: dict[int, list[int]] = {}
        for row, number in enumerate(numbers):
            if number != NO_ADAPTER:
                numbered_rows.setdefault(number, []).append(row)
        self.groups = [(number, torch.tensor(rows)) for number, rows in numbered_rows.items()]


class ProductAdapters:
    """The adapters of one product by their numbers: of each of its parts, whose `outputs` stand side by side.

    Products have a fixed number of rows, so that a row's bits depend on that row alone (C16)."""

    def __init__(self, rows: RowAdapters, outputs: Sequence[int]) -> None:
        self.rows, self.outputs = rows, tuple(outputs)
        self.numbered: dict[int, Sequence[LowRank | None]] = {}

    def made(self, parts: Sequence[LowRank | None], arena: object = None) -> MadeAdapter:
        """Lay out an adapter's parts; None for a part that it leaves as it is."""
        nbytes = sum(part.nbytes for part in parts if part is not None)
        return MadeAdapter(nbytes, lambda number: self.numbered.update({number: parts}))

    def remove(self, number: int) -> None:
        self.numbered.pop(number, None)

    def add(self, x: Tensor, made: Tensor) -> Tensor:
        """Add to `made` [rows, outputs], which was made of x [rows, inputs], what the rows' adapters make of x."""
        for number, rows in self.rows.groups:
            parts, start = self.numbered.get(number, ()), 0
            for part, width in zip(parts, self.outputs if parts else (), strict=True):
                if part is not None:
                    added = in_full_tiles(partial(low_rank, one=part), x[rows].float())
                    made[rows, start : start + width] += added.to(made.dtype)
                start += width
        return made


def low_rank(x: Tensor, one: LowRank) -> Tensor:
    return x @ one.down.T @ one.up.T
