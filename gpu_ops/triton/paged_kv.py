# SPDX-License-Identifier: Apache-2.0
"""Rows of a paged pool of keys and values, `[block][layer][plane][kv_head][slot][width]`, in kernels."""

import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.triton.launch import launch, power_of_2


def geometry(pool: Tensor) -> dict[str, int]:
    """The compile-time constants by which kernels find rows of a pool."""
    _, layers, planes, heads, slots, width = pool.shape
    assert pool.is_contiguous() and pool.is_floating_point()
    return {"LAYERS": layers, "PLANES": planes, "KV_HEADS": heads, "SLOTS": slots, "WIDTH": width}


@triton.jit
def row_places(
    blocks, offsets, layer, plane, head,
    LAYERS: tl.constexpr, PLANES: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Places of the first cell of each row. Pools have more cells than 32 bits count."""
    above = ((blocks.to(tl.int64) * LAYERS + layer) * PLANES + plane) * KV_HEADS + head
    return (above * SLOTS + offsets) * WIDTH


@triton.jit(do_not_specialize=["layer"])
def write_kernel(
    pool, slots, k, v, layer, k_row, k_head, v_row, v_head,
    LAYERS: tl.constexpr, PLANES: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    cell = tl.arange(0, BLOCK)
    inside = cell < WIDTH
    block, offset = slot // SLOTS, slot % SLOTS
    place = row_places(block, offset, layer, 0, head, LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH)
    numbers = tl.load(k + row * k_row + head * k_head + cell, mask=inside, other=0.0)
    tl.store(pool + place + cell, numbers.to(pool.dtype.element_ty), mask=inside)
    if PLANES == 2:
        place = row_places(block, offset, layer, 1, head, LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH)
        numbers = tl.load(v + row * v_row + head * v_head + cell, mask=inside, other=0.0)
        tl.store(pool + place + cell, numbers.to(pool.dtype.element_ty), mask=inside)


def write_kv(pool: Tensor, layer: int, slots: Tensor, k: Tensor, v: Tensor | None) -> None:
    """Put row r of k and v [rows, kv_heads, head_dim] into slot `slots[r]` of the pool, int32 `block * block_size +
    offset`. Rows with slot -1 are left out. Without v there is one plane."""
    constants = geometry(pool)
    rows, heads, dim = k.shape
    assert (v is None) == (constants["PLANES"] == 1) and (heads, dim) == (constants["KV_HEADS"], constants["WIDTH"])
    values = k if v is None else v
    assert k.stride(2) == values.stride(2) == 1 and slots.element_size() == 4
    launch(
        write_kernel, (rows, heads), pool, slots, k, values, layer, *k.stride()[:2], *values.stride()[:2],
        **constants, BLOCK=power_of_2(dim), num_warps=1 if dim <= 256 else 4,
    )  # fmt: skip
