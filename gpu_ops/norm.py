# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`x / rms(x) * weight` over the last axis, computed in float32. x [rows, size] or [rows, heads, size] of any
    floats, weight float32 [size]; the result has `dtype`."""
    if x.device.type != "cpu":
        from pontil.gpu_ops.triton import norm

        return norm.rms_norm(x, weight, eps, dtype)
    x = x.float()
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * scale * weight).to(dtype)


def add_rms_norm(
    hidden: Tensor, addend: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The sum of both, float32, and its norm, of `dtype`. hidden float32 and addend of any floats are [rows, size],
    weight is float32 [size]."""
    if hidden.device.type != "cpu":
        from pontil.gpu_ops.triton import norm

        return norm.add_rms_norm(hidden, addend, weight, eps, dtype)
    total = hidden + addend
    return total, rms_norm(total, weight, eps, dtype)
