# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`x / rms(x) * weight` over the last axis. x is float32 [rows, size]; the result has `dtype`."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * scale * weight).to(dtype)
