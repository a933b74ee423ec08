# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square normalisation, with or without an addition before it. One program computes one row, so that a row's
bits do not depend on others."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.triton.launch import launch, power_of_2


@triton.jit
def rms_norm_kernel(x, weight, out, x_stride, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    numbers = tl.load(x + row * x_stride + place, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(numbers * numbers, 0) / SIZE + eps)
    factor = tl.load(weight + place, mask=inside, other=0.0)
    tl.store(out + row * SIZE + place, (numbers * scale * factor).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`x / rms(x) * weight` over the last axis. x float32 [rows, size], weight float32 [size]; the result has
    `dtype`."""
    rows, size = x.shape
    out = torch.empty(rows, size, dtype=dtype, device=x.device)
    block = power_of_2(size)
    launch(
        rms_norm_kernel, (rows,), x, weight, out, x.stride(0), eps,
        SIZE=size, BLOCK=block, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip
    return out
