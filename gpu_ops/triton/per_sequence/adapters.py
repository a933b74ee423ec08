# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of some of a product's rows, of any ranks in one step. Every tile of rows has one adapter, and
there are as many programs as any rows could need: those without rows end at once, so that a step can be recorded.

Inputs are added in a fixed order: in pieces whose number follows from a product's inputs alone, then piece after piece.
So a row's bits do not depend on the rows beside it, nor on their adapters (C16).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.parameters.adapters import ROW_TILE
from pontil.gpu_ops.triton.launch import WIDE, ceil_div, in_rows, launch
from pontil.gpu_ops.triton.products import BLOCK_RANK, HEAD_FIELDS, PART_FIELDS, matrix_at, numbers_at

TILE_FIELDS: tl.constexpr = tl.constexpr(3)
BLOCK_FIELDS: tl.constexpr = tl.constexpr(4)
# Outputs and inputs that a program takes at a time.
BLOCK_OUTPUTS, BLOCK_INPUTS = 128, 128
# The pieces that many inputs are divided into, and what many are. Programs of a tile share its ranks.
PIECES, MANY_INPUTS, SHARES = 4, 2048, 4


@triton.jit
def rows_of_tile(order, tiles, tile, BLOCK_M: tl.constexpr):
    """The places in the order of a tile's rows, int32 [BLOCK_M], of which the first `count` exist and the others repeat
    the last one; the rows there; `count`, and the number of the adapter."""
    fields = tiles + tile * TILE_FIELDS
    first, count, number = tl.load(fields), tl.load(fields + 1), tl.load(fields + 2)
    places = first + tl.minimum(tl.arange(0, BLOCK_M), tl.maximum(count, 1) - 1)
    return places, tl.load(order + places).to(tl.int64), count, number.to(tl.int64)


# Not compiled anew for a number of rows: a row's bits would depend on it.
@triton.jit(do_not_specialize=("rows",))
def shrink_kernel(
    x, order, tiles, table, sums, x_row, rows, INPUTS: tl.constexpr, PIECE: tl.constexpr, FIELDS: tl.constexpr,
    WIDTH: tl.constexpr, SHARES: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Sums float32 [pieces, rows, WIDTH] of the rows of a tile times the first matrices of its adapter, which stand one
    behind the other."""
    piece, share = tl.program_id(1), tl.program_id(2)
    places, row, count, number = rows_of_tile(order, tiles, tl.program_id(0), BLOCK_M)
    if count == 0:
        return
    ranks = tl.load(table + number * FIELDS + 1).to(tl.int32)
    down = matrix_at(tl.load(table + number * FIELDS), x)
    begin = piece * PIECE
    end = tl.minimum(begin + PIECE, INPUTS)
    for first in range(share * BLOCK_R, ranks, SHARES * BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        total = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        for start in range(begin, end, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            some = numbers_at(x + row[:, None] * x_row + k[None, :], k, INPUTS, BLOCK_K)
            matrix = numbers_at(down + r[:, None] * INPUTS + k[None, :], k, INPUTS, BLOCK_K)
            if WIDE:
                some, matrix = some.to(tl.float32), matrix.to(tl.float32)
            total = tl.dot(some, tl.trans(matrix), total, input_precision="ieee")
        out = sums + (piece * rows + places).to(tl.int64)[:, None] * WIDTH + r[None, :]
        tl.store(out, total, mask=(tl.arange(0, BLOCK_M) < count)[:, None])


@triton.jit(do_not_specialize=("rows",))
def expand_kernel(
    made, order, tiles, table, blocks, sums, made_row, rows, FIELDS: tl.constexpr, WIDTH: tl.constexpr,
    PIECES: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Add to a tile of results what the second matrices make of the sums, which are rounded as activations are."""
    places, row, count, number = rows_of_tile(order, tiles, tl.program_id(0), BLOCK_M)
    if count == 0:
        return
    block = blocks + tl.program_id(1) * BLOCK_FIELDS
    n = tl.load(block) + tl.arange(0, BLOCK_N)
    end, part_first = tl.load(block + 1), tl.load(block + 2)
    fields = table + number * FIELDS + HEAD_FIELDS + tl.load(block + 3) * PART_FIELDS
    rank, rank_first = tl.load(fields + 1).to(tl.int32), tl.load(fields + 2).to(tl.int32)
    if rank == 0:
        return
    up = matrix_at(tl.load(fields), made)
    inside = (tl.minimum(n, end - 1) - part_first).to(tl.int64)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, rank, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        added = tl.load(sums + places.to(tl.int64)[:, None] * WIDTH + (rank_first + r)[None, :])
        for piece in tl.static_range(1, PIECES):
            own = (piece * rows + places).to(tl.int64)
            added += tl.load(sums + own[:, None] * WIDTH + (rank_first + r)[None, :])
        matrix = tl.load(up + inside[:, None] * rank + r[None, :])
        added = added.to(matrix.dtype)
        if WIDE:
            added, matrix = added.to(tl.float32), matrix.to(tl.float32)
        total = tl.dot(added, tl.trans(matrix), total, input_precision="ieee")
    out = made + row[:, None] * made_row + n[None, :]
    mask = (tl.arange(0, BLOCK_M) < count)[:, None] & (n < end)[None, :]
    total += tl.load(out, mask=mask, other=0.0).to(tl.float32)
    tl.store(out, total.to(made.dtype.element_ty), mask=mask)


def blocks_of(outputs: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """The blocks of outputs of a product whose parts have so many: the first one of each, the one behind the last of
    its part, the first of that, and the number of that."""
    made, first = list[tuple[int, int, int, int]](), 0
    for part, size in enumerate(outputs):
        made += [(first + at, first + size, first, part) for at in range(0, size, BLOCK_OUTPUTS)]
        first += size
    return made


def add_low_rank(
    x: Tensor, made: Tensor, order: Tensor, tiles: Tensor, table: Tensor, blocks: Tensor, most_ranks: int
) -> None:
    """Add to `made` [rows, outputs], in place, what adapters make of x [rows, inputs], both of the adapters' type.

    order int32 [rows] and tiles int32 [tiles, 3] are those of `row_tiles`. `table` int64 [numbers, fields] has for each
    adapter the address of its first matrices [ranks, inputs], one behind the other, and the number of all their ranks,
    a multiple of 16 and at most `most_ranks`; then for each part the address of its second matrix [outputs, rank], its
    rank, and the place of that among all ranks. A part with rank 0 adds nothing. `blocks` int32 [blocks, 4] are those
    of `blocks_of`."""
    x, (rows, inputs), fields = in_rows(x), x.shape, table.shape[1]
    assert made.stride(-1) == 1 and x.dtype == made.dtype
    pieces = PIECES if inputs >= MANY_INPUTS else 1
    piece = ceil_div(ceil_div(inputs, pieces), BLOCK_INPUTS) * BLOCK_INPUTS
    sums = torch.empty(pieces, rows, most_ranks, dtype=torch.float32, device=x.device)
    launch(
        shrink_kernel, (len(tiles), pieces, SHARES), x, order, tiles, table, sums, x.stride(0), rows, INPUTS=inputs,
        PIECE=piece, FIELDS=fields, WIDTH=most_ranks, SHARES=SHARES, WIDE=WIDE, BLOCK_M=ROW_TILE, BLOCK_R=BLOCK_RANK,
        BLOCK_K=BLOCK_INPUTS, num_stages=4, num_warps=4,
    )  # fmt: skip
    launch(
        expand_kernel, (len(tiles), len(blocks)), made, order, tiles, table, blocks, sums, made.stride(0), rows,
        FIELDS=fields, WIDTH=most_ranks, PIECES=pieces, WIDE=WIDE, BLOCK_M=ROW_TILE, BLOCK_N=BLOCK_OUTPUTS,
        BLOCK_R=BLOCK_RANK, num_stages=2, num_warps=4,
    )  # fmt: skip
