# SPDX-License-Identifier: Apache-2.0
"""Rotary positions of queries and keys, with the norms of heads before them, in one pass, which may also put keys and
values into a pool. One program computes one head of one row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.parameters.rotary import HeadTurn
from pontil.gpu_ops.triton.launch import in_rows, launch, power_of_2
from pontil.gpu_ops.triton.paged_kv import geometry, row_places


@triton.jit
def turn_head(
    source, out, weight, cos, sin, eps,
    DIM: tl.constexpr, TURNED: tl.constexpr, INTERLEAVED: tl.constexpr, NORMED: tl.constexpr, ROUNDED: tl.constexpr,
    HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Turn one head of one row by that row's cosines and sines."""
    pair = tl.arange(0, HALF)
    is_paired = pair < TURNED // 2
    if INTERLEAVED:
        first_cell, second_cell = 2 * pair, 2 * pair + 1
    else:
        first_cell, second_cell = pair, pair + TURNED // 2
    first = tl.load(source + first_cell, mask=is_paired, other=0.0).to(tl.float32)
    second = tl.load(source + second_cell, mask=is_paired, other=0.0).to(tl.float32)
    last = tl.arange(0, REST) + TURNED
    tail = tl.load(source + last, mask=last < DIM, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(first * first, 0) + tl.sum(second * second, 0) + tl.sum(tail * tail, 0)
        scale = tl.rsqrt(squares / DIM + eps)
        # Rounded between norm and rotation, as the two are apart.
        first = (first * scale * tl.load(weight + first_cell, mask=is_paired, other=0.0)).to(ROUNDED).to(tl.float32)
        second = (second * scale * tl.load(weight + second_cell, mask=is_paired, other=0.0)).to(ROUNDED).to(tl.float32)
        tail = tail * scale * tl.load(weight + last, mask=last < DIM, other=0.0)
    c = tl.load(cos + pair, mask=is_paired, other=0.0)
    s = tl.load(sin + pair, mask=is_paired, other=0.0)
    # Rounded as the turned heads are where they go through memory.
    kind = out.dtype.element_ty
    tl.store(out + pair, (first * c - second * s).to(ROUNDED).to(kind), mask=is_paired)
    tl.store(out + TURNED // 2 + pair, (second * c + first * s).to(ROUNDED).to(kind), mask=is_paired)
    tl.store(out + last, tail.to(ROUNDED).to(kind), mask=last < DIM)


@triton.jit
def turn_kernel(
    q, k, out_q, out_k, q_norm, k_norm, cos, sin, q_row, q_head, k_row, k_head, angle_row, eps,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, TURNED: tl.constexpr, INTERLEAVED: tl.constexpr,
    NORMED: tl.constexpr, ROUNDED: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if head < QUERIES:
        source, out, weight = q + row * q_row + head * q_head, out_q + (row * QUERIES + head) * DIM, q_norm
    else:
        head -= QUERIES
        source, out, weight = k + row * k_row + head * k_head, out_k + (row * KEYS + head) * DIM, k_norm
    cos, sin = cos + row * angle_row, sin + row * angle_row
    turn_head(source, out, weight, cos, sin, eps, DIM, TURNED, INTERLEAVED, NORMED, ROUNDED, HALF, REST)


@triton.jit(do_not_specialize=["layer"])
def turn_and_write_kernel(
    q, k, v, out_q, pool, slots, layer, q_norm, k_norm, cos, sin, q_row, q_head, k_row, k_head, v_row, v_head,
    angle_row, eps,
    QUERIES: tl.constexpr, DIM: tl.constexpr, TURNED: tl.constexpr, INTERLEAVED: tl.constexpr,
    NORMED: tl.constexpr, ROUNDED: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr,
    LAYERS: tl.constexpr, PLANES: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
    CELLS: tl.constexpr,
):  # fmt: skip
    """Heads follow each other: those of queries go to `out_q`, those of keys and of values into their row's slot."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cos, sin = cos + row * angle_row, sin + row * angle_row
    if head < QUERIES:
        turn_head(
            q + row * q_row + head * q_head, out_q + (row * QUERIES + head) * DIM, q_norm, cos, sin, eps,
            DIM, TURNED, INTERLEAVED, NORMED, ROUNDED, HALF, REST,
        )  # fmt: skip
    else:
        slot = tl.load(slots + row)
        if slot >= 0:
            kv_head = (head - QUERIES) % KV_HEADS
            plane = (head - QUERIES) // KV_HEADS
            block, offset = slot // SLOTS, slot % SLOTS
            place = pool + row_places(
                block, offset, layer, plane, kv_head, LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH, CELLS
            )
            if plane == 0:
                turn_head(
                    k + row * k_row + kv_head * k_head, place, k_norm, cos, sin, eps,
                    DIM, TURNED, INTERLEAVED, NORMED, ROUNDED, HALF, REST,
                )  # fmt: skip
            else:
                cell = tl.arange(0, BLOCK)
                inside = cell < DIM
                numbers = tl.load(v + row * v_row + kv_head * v_head + cell, mask=inside, other=0.0)
                tl.store(place + cell, numbers.to(pool.dtype.element_ty), mask=inside)


TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def turn_heads(q: Tensor, k: Tensor, turn: HeadTurn) -> tuple[Tensor, Tensor]:
    """Turn q [rows, heads, dim] and k [rows, kv_heads, dim]. The results are contiguous."""
    q, k, cos, sin = (in_rows(numbers) for numbers in (q, k, turn.cos, turn.sin))
    rows, queries, dim = q.shape
    keys, rotary_dim = k.shape[1], 2 * cos.shape[1]
    assert cos.stride() == sin.stride() and k.dtype == q.dtype
    out_q, out_k = (torch.empty(source.shape, dtype=source.dtype, device=source.device) for source in (q, k))
    q_norm, k_norm, eps = turn.norms or (cos, cos, 0.0)
    launch(
        turn_kernel, (rows, queries + keys), q, k, out_q, out_k, q_norm, k_norm, cos, sin,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), cos.stride(0), eps,
        QUERIES=queries, KEYS=keys, DIM=dim, TURNED=rotary_dim, INTERLEAVED=turn.interleaved,
        NORMED=turn.norms is not None, ROUNDED=TYPES[q.dtype], HALF=power_of_2(rotary_dim // 2),
        REST=power_of_2(max(1, dim - rotary_dim)), num_warps=1,
    )  # fmt: skip
    return out_q, out_k


def turn_and_write(pool: Tensor, layer: int, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, turn: HeadTurn) -> Tensor:
    """Turn q and k as `turn_heads` does. Put row r of the keys and of v [rows, kv_heads, dim] into slot `slots[r]` of a
    layer of the pool, whose cells are numbers, int32 `block * block_size + offset`; rows with slot -1 are left out.
    Return the queries."""
    q, k, v, cos, sin = (in_rows(numbers) for numbers in (q, k, v, turn.cos, turn.sin))
    rows, queries, dim = q.shape
    constants, rotary_dim = geometry(pool), 2 * cos.shape[1]
    keys = constants["KV_HEADS"]
    assert k.shape == v.shape == (rows, keys, dim) and (constants["PLANES"], constants["WIDTH"]) == (2, dim)
    assert constants["CELLS"] == 0
    assert cos.stride() == sin.stride() and k.dtype == v.dtype == q.dtype and slots.element_size() == 4
    out_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    q_norm, k_norm, eps = turn.norms or (cos, cos, 0.0)
    launch(
        turn_and_write_kernel, (rows, queries + 2 * keys), q, k, v, out_q, pool, slots, layer, q_norm, k_norm, cos, sin,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), cos.stride(0), eps,
        QUERIES=queries, DIM=dim, TURNED=rotary_dim, INTERLEAVED=turn.interleaved, NORMED=turn.norms is not None,
        ROUNDED=TYPES[q.dtype], HALF=power_of_2(rotary_dim // 2), REST=power_of_2(max(1, dim - rotary_dim)),
        BLOCK=power_of_2(dim), **constants, num_warps=1,
    )  # fmt: skip
    return out_q
