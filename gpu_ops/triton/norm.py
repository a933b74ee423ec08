# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square normalisation, with or without an addition before it. One program computes one row, so that a row's
bits do not depend on others."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.triton.launch import launch, power_of_2


@triton.jit
def normed(numbers, weight, place, inside, eps, SIZE: tl.constexpr):
    """Norm one row of float32, which is 0 outside."""
    scale = tl.rsqrt(tl.sum(numbers * numbers, 0) / SIZE + eps)
    return numbers * scale * tl.load(weight + place, mask=inside, other=0.0)


@triton.jit
def rms_norm_kernel(
    x, weight, out, x_stride, head_stride, eps, HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    start = x + row // HEADS * x_stride + row % HEADS * head_stride
    numbers = tl.load(start + place, mask=inside, other=0.0).to(tl.float32)
    result = normed(numbers, weight, place, inside, eps, SIZE)
    tl.store(out + row * SIZE + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm_kernel(
    x, addend, weight, total, out, x_stride, addend_stride, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    numbers = tl.load(x + row * x_stride + place, mask=inside, other=0.0)
    numbers += tl.load(addend + row * addend_stride + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + row * SIZE + place, numbers, mask=inside)
    result = normed(numbers, weight, place, inside, eps, SIZE)
    tl.store(out + row * SIZE + place, result.to(out.dtype.element_ty), mask=inside)


def warps(block: int) -> int:
    return min(16, max(1, block // 512))


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`x / rms(x) * weight` over the last axis, whose numbers are neighbours. x [rows, size] or [rows, heads, size] of
    any floats, weight float32 [size]; the result has `dtype`."""
    rows, size, heads = len(x), x.shape[-1], x.shape[1] if x.ndim == 3 else 1
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    block = power_of_2(size)
    launch(
        rms_norm_kernel, (rows * heads,), x, weight, out, x.stride(0), x.stride(1) if x.ndim == 3 else 0, eps,
        HEADS=heads, SIZE=size, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip
    return out


def add_rms_norm(
    hidden: Tensor, addend: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The sum of both, float32, and its norm, of `dtype`. hidden float32 and addend of any floats are [rows, size],
    weight is float32 [size]."""
    rows, size = hidden.shape
    total = torch.empty(rows, size, dtype=torch.float32, device=hidden.device)
    out = torch.empty(rows, size, dtype=dtype, device=hidden.device)
    block = power_of_2(size)
    launch(
        add_rms_norm_kernel, (rows,), hidden, addend, weight, total, out, hidden.stride(0), addend.stride(0), eps,
        SIZE=size, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip
    return total, out
