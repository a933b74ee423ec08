# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding (Su et al., 2021), halves layout: dimension i turns together with i + head_dim / 2."""

import torch
from torch import Tensor


def rotary_table(head_dim: int, positions: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each float32 [positions, head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), 1.0 / theta**exponents)
    return angles.cos().to(device), angles.sin().to(device)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [rows, heads, head_dim] by one angle per row; cos and sin are [rows, head_dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
