# SPDX-License-Identifier: Apache-2.0
"""Gated activations."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.triton.launch import ceil_div, launch

SILU, GELU, CLAMPED = 0, 1, 2
# Of one program.
COLUMNS = 1024


@triton.jit
def activated(gate, up, alpha, limit, KIND: tl.constexpr):
    """The activation of gates times ups, all float32. KIND is SILU, GELU or CLAMPED."""
    if KIND == 0:
        return gate * tl.sigmoid(gate) * up
    elif KIND == 1:
        # 0.5 * (1 + tanh(z)) is the sigmoid of 2 z; the factor is twice the root of 2 / pi.
        return gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
    else:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        return gate * tl.sigmoid(gate * alpha) * (up + 1.0)


@triton.jit
def gated_kernel(x, out, x_stride, alpha, limit, SIZE: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < SIZE
    gate = tl.load(x + row * x_stride + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + SIZE + place, mask=inside, other=0.0).to(tl.float32)
    result = activated(gate, up, alpha, limit, KIND)
    tl.store(out + row * SIZE + place, result.to(out.dtype.element_ty), mask=inside)


def gated(gate_up: Tensor, kind: int, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    """An activation of gates times ups, side by side: [..., 2 * size] to [..., size]. `alpha` and `limit` are of
    CLAMPED."""
    flat = gate_up.flatten(0, -2)
    size = flat.shape[1] // 2
    out = torch.empty(*gate_up.shape[:-1], size, dtype=gate_up.dtype, device=gate_up.device)
    launch(
        gated_kernel, (len(flat), ceil_div(size, COLUMNS)), flat, out, flat.stride(0), alpha, limit,
        SIZE=size, KIND=kind, BLOCK=COLUMNS, num_warps=4,
    )  # fmt: skip
    return out
