# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of some of a product's rows, by torch: the reference for kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pontil.gpu_ops.parameters.adapters import NO_ADAPTER, ROW_TILE, LowRank, MadeAdapter
from pontil.gpu_ops.products.full_tiles import in_full_tiles

CPU = torch.device("cpu")
OUTPUTS = 16
"""The library adds up fewer outputs in another order, so that ranks with a part of them would have other bits."""
Numbers = NDArray[np.int32]


def row_tiles(numbers: Sequence[int], rows: int, most: int) -> list[Numbers]:
    """Divide the rows that have an adapter into tiles of rows of one: `order` int32 [rows], these rows by the numbers
    of their adapters, and `tiles` int32 [tiles, 3]: the first place in the order, the count of rows, and the number.
    How many tiles there are follows from `rows` and the `most` adapters; those of no rows come last.

    `numbers` are those of the first rows; the others have none."""
    given = np.array(numbers, np.int32)
    adapted = np.flatnonzero(given != NO_ADAPTER)
    in_order = adapted[np.argsort(given[adapted], kind="stable")]
    found, starts, counts = np.unique(given[in_order], return_index=True, return_counts=True)
    cut = [
        (start + at, min(ROW_TILE, count - at), number)
        for number, start, count in zip(found.tolist(), starts.tolist(), counts.tolist(), strict=True)
        for at in range(0, count, ROW_TILE)
    ]
    order, tiles = np.zeros(rows, np.int32), np.zeros((min(rows, rows // ROW_TILE + most), 3), np.int32)
    order[: len(in_order)] = in_order
    if cut:
        tiles[: len(cut)] = cut
    return [order, tiles]


class RowAdapters:
    """The rows of the tile that a model computes now, in tiles of rows of one adapter, as `row_tiles` makes them."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self.numbers: Tensor | None = None
        self.order, self.tiles = torch.zeros(0, dtype=torch.int32), torch.zeros(0, 3, dtype=torch.int32)

    def choose(self, numbers: Sequence[int]) -> None:
        """Set the adapter of each row; rows behind these have none."""
        order, tiles = row_tiles(numbers, len(numbers), len(numbers))
        self.place(*(torch.from_numpy(part).to(self.device) for part in (order, tiles)))

    def place(self, order: Tensor, tiles: Tensor) -> None:
        """Take the tiles from memory of the device, which may be written before the model computes."""
        self.order, self.tiles, self.numbers = order, tiles, None

    def of_tile(self, rows: int) -> Tensor:
        """The numbers of the adapters of so many rows, int32 [rows], made on their device for the first that asks."""
        if self.numbers is None or len(self.numbers) < rows:
            size = max(rows, len(self.order))
            numbers = torch.full((size + 1,), NO_ADAPTER, dtype=torch.int32, device=self.device)
            if len(self.tiles):
                first, count, number = self.tiles.unbind(1)
                inside = torch.arange(ROW_TILE, dtype=torch.int32, device=self.device)
                places = (first.unsqueeze(1) + inside).clamp(max=len(self.order) - 1)
                # Places behind a tile's last one are written behind all rows.
                own = torch.where(inside < count.unsqueeze(1), self.order[places], size).long()
                numbers.scatter_(0, own.flatten(), number.unsqueeze(1).expand_as(own).flatten())
            self.numbers = numbers[:size]
        return self.numbers[:rows]

    @property
    def groups(self) -> list[tuple[int, Tensor]]:
        """The numbers of the adapters, each with its rows int64."""
        parts = dict[int, list[Tensor]]()
        for first, count, number in self.tiles.tolist():
            if count:
                parts.setdefault(number, []).append(self.order[first : first + count].long())
        return [(number, torch.cat(some)) for number, some in parts.items()]


class ProductAdapters:
    """The adapters by their numbers of one product, or of equal ones, as experts have: of each of its parts, whose
    `outputs` stand side by side.

    Products have a fixed number of rows, so that a row's bits depend on that row alone (C16)."""

    def __init__(self, rows: RowAdapters, outputs: Sequence[int]) -> None:
        self.rows, self.outputs = rows, tuple(outputs)
        self.numbered: dict[int, Sequence[LowRank | None]] = {}

    def made(self, parts: Sequence[LowRank | None], arena: object = None) -> MadeAdapter:
        """Lay out an adapter's parts; None for a part that it leaves as it is."""
        padded = [None if part is None else part.padded(1, OUTPUTS) for part in parts]
        nbytes = sum(part.nbytes for part in parts if part is not None)
        return MadeAdapter(nbytes, lambda number: self.numbered.update({number: padded}))

    def remove(self, number: int) -> None:
        self.numbered.pop(number, None)

    def add(self, x: Tensor, made: Tensor, place: int | None = None) -> Tensor:
        """Add to `made` [rows, outputs], which was made of x [rows, inputs] by the product of a place, if there are
        several, what the rows' adapters make of x."""
        for number, rows in self.rows.groups if self.numbered else ():
            parts, start = self.numbered.get(number, ()), 0
            for part, width in zip(parts, self.outputs if parts else (), strict=True):
                if part is not None:
                    one = part if place is None else part.of(place)
                    added = in_full_tiles(partial(low_rank, one=one), x[rows].float())
                    made[rows, start : start + width] += added[:, :width].to(made.dtype)
                start += width
        return made


@dataclass(frozen=True, slots=True)
class PlacedAdapters:
    """The adapters of one of several equal products."""

    held: ProductAdapters
    place: int

    def add(self, x: Tensor, made: Tensor) -> Tensor:
        return self.held.add(x, made, self.place)


def low_rank(x: Tensor, one: LowRank) -> Tensor:
    return x @ one.down.T @ one.up.T
