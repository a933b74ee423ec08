# SPDX-License-Identifier: Apache-2.0
"""Rows of a paged pool of keys and values, `[block][layer][plane][kv_head][slot][cells]`, in kernels.

Cells are numbers, or 8 bits with the row's scale, a float32, behind them (gpu_ops/kv/cells.py). CELLS tells which: 0
for numbers. Cells of 8 bits are written by arithmetic that every processor has, so that all write the same ones.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.parameters.cells import LARGEST, NOTHING, SCALE_BYTES, head_dim_of
from pontil.gpu_ops.triton.launch import launch, power_of_2
from pontil.gpu_ops.triton.products import FLOAT8_SHARE, share_of_float8

KINDS = {torch.int8: 1, torch.float8_e4m3fn: 2}
MOST_WHOLE, MOST_FLOAT = tl.constexpr(LARGEST[torch.int8]), tl.constexpr(LARGEST[torch.float8_e4m3fn])
INVERSE_WHOLE, INVERSE_FLOAT = tl.constexpr(1 / MOST_WHOLE.value), tl.constexpr(1 / MOST_FLOAT.value)
LEAST, SCALE_CELLS = tl.constexpr(NOTHING), tl.constexpr(SCALE_BYTES)


def geometry(pool: Tensor) -> dict[str, int]:
    """The compile-time constants by which kernels find rows of a pool."""
    _, layers, planes, heads, slots, cells = pool.shape
    # A scale lies where a float32 may.
    assert pool.is_contiguous() and (pool.is_floating_point() or pool.dtype in KINDS)
    assert pool.dtype not in KINDS or cells % SCALE_BYTES == 0
    kind, width = KINDS.get(pool.dtype, 0), head_dim_of(pool)
    return {"LAYERS": layers, "PLANES": planes, "KV_HEADS": heads, "SLOTS": slots, "WIDTH": width, "CELLS": kind}


def loadable(pool: Tensor) -> Tensor:
    """The pool in a type that every processor can load."""
    return pool.view(torch.uint8) if pool.dtype == torch.float8_e4m3fn else pool


@triton.jit
def row_places(
    blocks, offsets, layer, plane, head,
    LAYERS: tl.constexpr, PLANES: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
    CELLS: tl.constexpr,
):  # fmt: skip
    """Places of the first cell of each row. Pools have more cells than 32 bits count."""
    above = ((blocks.to(tl.int64) * LAYERS + layer) * PLANES + plane) * KV_HEADS + head
    return (above * SLOTS + offsets) * (WIDTH + SCALE_CELLS * (CELLS > 0))


@triton.jit
def numbers_in(cells, kind: tl.constexpr, CELLS: tl.constexpr):
    """Cells as numbers of this type, which hold those of 8 bits exactly; a row's number is a product with its scale."""
    if CELLS == 1:
        return cells.to(tl.float32).to(kind)
    elif CELLS == 2:
        return share_of_float8(cells).to(tl.float32).to(kind)
    else:
        return cells


@triton.jit
def scales_at(rows, is_stored, WIDTH: tl.constexpr, CELLS: tl.constexpr, BOUNDED: tl.constexpr):
    """The scales of numbers that `numbers_in` gives for the rows at these pointers; of what is not stored 0. Not
    BOUNDED: all are stored."""
    pointers = (rows + WIDTH).to(tl.pointer_type(tl.float32))
    scales = tl.load(pointers, mask=is_stored, other=0.0) if BOUNDED else tl.load(pointers)
    if CELLS == 2:
        scales *= FLOAT8_SHARE
    return scales


@triton.jit
def whole_cells(x):
    """Round numbers of at most 127 to whole ones, ties to even: behind the addition the last bits of a sum that has no
    fraction left are those of the whole number."""
    return ((x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000).to(tl.int8)


@triton.jit
def float_cells(x):
    """Round numbers of at most 448 to floats of 8 bits (e4m3), ties to even, and return their bits: by their own bits,
    of which the last 20 are dropped, and below the smallest normal one by an addition, as whole numbers are."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    magnitude = size.to(tl.float32, bitcast=True)
    small = (magnitude + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    return (tl.where(magnitude < 0.015625, small, normal) | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def store_row(place, numbers, inside, WIDTH: tl.constexpr, CELLS: tl.constexpr, BLOCK: tl.constexpr):
    """Store the numbers of a row as its cells, with the scale behind them if these have one. A row that holds what is
    no number, or infinity, has a scale that is none."""
    cell = tl.arange(0, BLOCK)
    if CELLS == 0:
        tl.store(place + cell, numbers.to(place.dtype.element_ty), mask=inside)
    else:
        x = numbers.to(tl.float32)
        unknown = tl.max((x != x).to(tl.int32), 0) > 0
        highest = tl.max(tl.abs(tl.where(x != x, 0.0, x)), 0)
        most = tl.full((), MOST_WHOLE if CELLS == 1 else MOST_FLOAT, tl.float32)
        is_scaled = (highest > LEAST) & (unknown == 0)
        x = x * tl.where(is_scaled, tl.div_rn(most, tl.where(is_scaled, highest, 1.0)), 0.0)
        x = tl.minimum(tl.maximum(tl.where(x != x, 0.0, x), -most), most)
        if CELLS == 1:
            tl.store(place + cell, whole_cells(x), mask=inside)
        else:
            tl.store(place + cell, float_cells(x), mask=inside)
        scale = tl.where(unknown, float("nan"), highest * (INVERSE_WHOLE if CELLS == 1 else INVERSE_FLOAT))
        tl.store((place + WIDTH).to(tl.pointer_type(tl.float32)), scale)


@triton.jit(do_not_specialize=["layer"])
def write_kernel(
    pool, slots, k, v, layer, k_row, k_head, v_row, v_head,
    LAYERS: tl.constexpr, PLANES: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
    CELLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    cell = tl.arange(0, BLOCK)
    inside = cell < WIDTH
    block, offset = slot // SLOTS, slot % SLOTS
    place = row_places(block, offset, layer, 0, head, LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH, CELLS)
    numbers = tl.load(k + row * k_row + head * k_head + cell, mask=inside, other=0.0)
    store_row(pool + place, numbers, inside, WIDTH, CELLS, BLOCK)
    if PLANES == 2:
        place = row_places(block, offset, layer, 1, head, LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH, CELLS)
        numbers = tl.load(v + row * v_row + head * v_head + cell, mask=inside, other=0.0)
        store_row(pool + place, numbers, inside, WIDTH, CELLS, BLOCK)


def write_kv(pool: Tensor, layer: int, slots: Tensor, k: Tensor, v: Tensor | None) -> None:
    """Put row r of k and v [rows, kv_heads, head_dim] into slot `slots[r]` of the pool, int32 `block * block_size +
    offset`. Rows with slot -1 are left out. Without v there is one plane."""
    constants = geometry(pool)
    rows, heads, dim = k.shape
    assert (v is None) == (constants["PLANES"] == 1) and (heads, dim) == (constants["KV_HEADS"], constants["WIDTH"])
    values = k if v is None else v
    assert k.stride(2) == values.stride(2) == 1 and slots.element_size() == 4
    launch(
        write_kernel, (rows, heads), loadable(pool), slots, k, values, layer, *k.stride()[:2], *values.stride()[:2],
        **constants, BLOCK=power_of_2(dim), num_warps=1 if dim <= 256 else 4,
    )  # fmt: skip
