# SPDX-License-Identifier: Apache-2.0
"""Keys and values of 8 bits as the kernels write and read them, cell for cell, on every instruction set."""

import pytest
import torch
from torch import Tensor

from pontil.gpu_ops.kernels.layer import AttentionHalf, HeadShape, Norms, Rotation
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kernels.weights.matrix import pack
from pontil.gpu_ops.kernels.weights.slots import unpacked
from pontil.gpu_ops.kernels.weights.structures import CELLS
from pontil.gpu_ops.kv.cells import decode, encode
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.cells import LARGEST, row_cells

DIM, ROWS = 32, 64


def copying(library: KernelLibrary) -> AttentionHalf:
    """A layer whose queries are zeros, whose keys and values are the two halves of a row as they are, and that adds the
    attended values to the first half."""
    queries = torch.zeros(DIM, 2 * DIM)
    qkv = torch.cat([queries, torch.eye(2 * DIM)])
    out = torch.cat([torch.eye(DIM), torch.zeros(DIM, DIM)])
    still = torch.ones(ROWS, DIM // 2), torch.zeros(ROWS, DIM // 2)
    shape, layer = HeadShape(1, 1, DIM), LayerAttention(0, 1.0, 1)
    return AttentionHalf(library, pack(qkv), pack(out), Norms(1e-6), Rotation(*still), shape, layer)


def numbers() -> Tensor:
    """Rows [ROWS, 2 * DIM] of many sizes; some have zeros, ties between two cells, or cells below the smallest normal
    one."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(ROWS, 2 * DIM, generator=generator)
    x *= torch.pow(10.0, torch.randint(-9, 9, (ROWS, 1), generator=generator))
    x[1], x[2, ::3], x[3] = 0, 0, 1e-35
    # The scale is 1 for each type: halves are ties.
    for row, most in zip((4, 5), LARGEST.values(), strict=True):
        x[row] = torch.arange(2 * DIM) / 2 - 15.25
        x[row, ::DIM] = most
    x[6] *= torch.pow(2.0, -torch.arange(2 * DIM) % DIM)
    return x


@pytest.mark.parametrize("cells", CELLS, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_every_cell_is_what_torch_makes_of_it(library: KernelLibrary, cells: torch.dtype, block_size: int) -> None:
    x, count = numbers(), ROWS // block_size
    pool = torch.empty(count, 1, 2, 1, block_size, row_cells(DIM, cells), dtype=cells)
    hidden = x.clone()
    tile = KernelTile(pool, [TileSpan(0, ROWS, range(count))], torch.float32)
    copying(library)(hidden, tile)
    found = torch.cat([unpacked(block)[0, :, 0] for block in pool], dim=1)
    expected = torch.stack([encode(one.contiguous(), cells) for one in x.split(DIM, dim=1)])
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    # Each position sees itself only: what it reads is what was stored.
    assert torch.equal(hidden, x + torch.cat([decode(expected[1]), torch.zeros(ROWS, DIM)], dim=1))


@pytest.mark.parametrize("cells", CELLS, ids=str)
def test_every_cell_is_read_as_torch_reads_it(library: KernelLibrary, cells: torch.dtype) -> None:
    """All of them but NaN and the most negative byte, as values: the largest cell in a row makes its scale 1."""
    every = torch.arange(256, dtype=torch.uint8).view(cells)
    every = torch.where(torch.isfinite(every.float()), every.float(), 0.0)
    pool = torch.zeros(4, 1, 2, 1, 16, row_cells(DIM, cells), dtype=cells)
    x = torch.zeros(ROWS, 2 * DIM)
    x[:, DIM] = LARGEST[cells]
    for row, part in enumerate(every.split(16)):
        x[row, DIM + 1 : DIM + 17] = part.clamp(-LARGEST[cells], LARGEST[cells])
    hidden = x.clone()
    copying(library)(hidden, KernelTile(pool, [TileSpan(0, ROWS, range(4))], torch.float32))
    assert torch.equal(hidden[:, :DIM], x[:, DIM:])


@pytest.mark.parametrize("cells", CELLS, ids=str)
def test_what_is_no_number_is_not_hidden(library: KernelLibrary, cells: torch.dtype) -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        pool = torch.zeros(4, 1, 2, 1, 16, row_cells(DIM, cells), dtype=cells)
        hidden = torch.ones(ROWS, 2 * DIM)
        hidden[3, DIM + 7] = bad
        copying(library)(hidden, KernelTile(pool, [TileSpan(0, ROWS, range(4))], torch.float32))
        assert not torch.isfinite(hidden[3, :DIM]).any() and bool(torch.isfinite(hidden[4]).all())
