# SPDX-License-Identifier: Apache-2.0
"""The runs of a tile's rows, made on the device of what a tile has there: nothing waits for their number."""

import torch
from torch import Tensor

from pontil.gpu_ops.kv.device_tile import DeviceTile


def prompt_runs(tile: DeviceTile) -> tuple[Tensor, Tensor]:
    """The rows of each text of a tile of prompts, and its positions up to the last of them, int32 [texts]. Query tiles
    follow each other in the order of texts, so do the rows; those behind the last belong to padding."""
    assert tile.query_tiles is not None
    _, first, sizes, texts = tile.query_tiles.unbind(1)
    where, zeros = texts.long(), tile.tables.new_zeros(len(tile.tables))
    ends = torch.where(sizes > 0, first + sizes, 0)
    return zeros.index_add(0, where, sizes), zeros.scatter_reduce(0, where, ends, "amax")


def starts_of(counts: Tensor) -> Tensor:
    """The beginnings of runs of so many, and the end of the last, int32 [runs + 1]."""
    return torch.cat((counts.new_zeros(1), counts.cumsum(0, dtype=torch.int32)))


def pages_of(lengths: Tensor, page_size: int) -> Tensor:
    """The pages of texts of so many positions, one at least."""
    return ((lengths + page_size - 1) // page_size).clamp(min=1)


def page_list(tables: Tensor, owners: Tensor, pages: Tensor, room: int) -> Tensor:
    """The first `pages` entries of rows `owners` of tables, one row's behind the other's, int32 [room]. What is behind
    the last of them is of no text."""
    ends = pages.cumsum(0, dtype=torch.int32)
    place = torch.arange(room, dtype=torch.int32, device=tables.device)
    row = torch.searchsorted(ends, place, right=True).clamp(max=len(pages) - 1)
    column = (place - (ends - pages)[row]).clamp(0, tables.shape[1] - 1)
    return tables[owners[row].long(), column.long()]
