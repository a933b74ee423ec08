# SPDX-License-Identifier: Apache-2.0
"""Rotary positions of queries and keys, with the norms of heads before them, in one pass. One program computes one head
of one row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.triton.launch import launch, power_of_2


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
    pair = tl.arange(0, HALF)
    paired = pair < TURNED // 2
    if INTERLEAVED:
        one, two = 2 * pair, 2 * pair + 1
    else:
        one, two = pair, pair + TURNED // 2
    first = tl.load(source + one, mask=paired, other=0.0).to(tl.float32)
    second = tl.load(source + two, mask=paired, other=0.0).to(tl.float32)
    last = tl.arange(0, REST) + TURNED
    rest = tl.load(source + last, mask=last < DIM, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(first * first, 0) + tl.sum(second * second, 0) + tl.sum(rest * rest, 0)
        scale = tl.rsqrt(squares / DIM + eps)
        # Rounded between norm and rotation, as the two are apart.
        first = (first * scale * tl.load(weight + one, mask=paired, other=0.0)).to(ROUNDED).to(tl.float32)
        second = (second * scale * tl.load(weight + two, mask=paired, other=0.0)).to(ROUNDED).to(tl.float32)
        rest = rest * scale * tl.load(weight + last, mask=last < DIM, other=0.0)
    c = tl.load(cos + row * angle_row + pair, mask=paired, other=0.0)
    s = tl.load(sin + row * angle_row + pair, mask=paired, other=0.0)
    kind = out.dtype.element_ty
    tl.store(out + pair, (first * c - second * s).to(kind), mask=paired)
    tl.store(out + TURNED // 2 + pair, (second * c + first * s).to(kind), mask=paired)
    tl.store(out + last, rest.to(kind), mask=last < DIM)


TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def turn_heads(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, norms: tuple[Tensor, Tensor, float] | None
) -> tuple[Tensor, Tensor]:
    """Turn q [rows, heads, dim] and k [rows, kv_heads, dim], whose dimensions are neighbours, by the angles of each
    row, cosines and sines float32 [rows, turned / 2]. `norms`: weights of queries and keys float32 [dim], and an
    epsilon. The results are contiguous."""
    rows, queries, dim = q.shape
    keys, turned = k.shape[1], 2 * cos.shape[1]
    assert cos.stride() == sin.stride() and k.dtype == q.dtype
    out_q, out_k = (torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in (q, k))
    q_norm, k_norm, eps = norms or (cos, cos, 0.0)
    launch(
        turn_kernel, (rows, queries + keys), q, k, out_q, out_k, q_norm, k_norm, cos, sin,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), cos.stride(0), eps,
        QUERIES=queries, KEYS=keys, DIM=dim, TURNED=turned, INTERLEAVED=interleaved, NORMED=norms is not None,
        ROUNDED=TYPES[q.dtype], HALF=power_of_2(turned // 2), REST=power_of_2(max(1, dim - turned)), num_warps=1,
    )  # fmt: skip
    return out_q, out_k
