# SPDX-License-Identifier: Apache-2.0
"""The numbers of one tile of rows that kernels on a device read. All are int32: a step writes them into one pinned
buffer and copies it once, so that these tensors are views of the copy."""

from dataclasses import dataclass

from torch import Tensor

QUERY_TILE = 64
"""Positions of a query tile of a prompt. Tiles begin at multiples of it in their text."""
TILE_NUMBERS = 4
"""Numbers that describe a query tile."""


@dataclass(frozen=True, slots=True)
class DeviceTile:
    """A tile's rows, each of which is one position of one sequence. Rows that only pad the tile come last.

    slots [rows]: where a row's key and value are stored: `block * block_size + offset`; -1 for padding.
    positions [rows]: the position in its text, for rotary embeddings; 0 for padding.
    tables [sequences, blocks]: block numbers in the order of the text. Entries behind a text's last block are not read.
    The last dimension is contiguous; the first may have any stride, a multiple of 4 being the fastest.

    A tile of generated positions has `owners` and `lengths`:
    owners [rows]: the row of `tables` that holds the row's blocks; 0 for padding.
    lengths [rows]: the number of positions that the row sees, its own being the last; 0 for padding.

    A tile of prompts has `query_tiles` [count, 4]: first row, first position, number of positions, and row of `tables`.
    `cut` makes them. Positions of a query tile follow each other, as their rows do. A tile of no positions is padding.
    """

    slots: Tensor
    positions: Tensor
    tables: Tensor
    owners: Tensor | None = None
    lengths: Tensor | None = None
    query_tiles: Tensor | None = None

    def __post_init__(self) -> None:
        assert (self.lengths is None) == (self.owners is None) != (self.query_tiles is None)


def cut(row: int, start: int, count: int, table: int) -> list[tuple[int, int, int, int]]:
    """Return the query tiles of positions [start, start + count) of one sequence, which rows `row`… hold."""
    tiles, end = [], start + count
    while start < end:
        size = min(end, (start // QUERY_TILE + 1) * QUERY_TILE) - start
        tiles.append((row, start, size, table))
        row, start = row + size, start + size
    return tiles
