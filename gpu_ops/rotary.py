# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding (Su et al., 2021), halves layout: dimension i turns together with i + head_dim / 2."""

import torch
from torch import Tensor

from pontil.gpu_ops.norm import rms_norm
from pontil.gpu_ops.parameters.rotary import HeadTurn


def rotary_frequencies(head_dim: int, theta: float) -> Tensor:
    """Radians per position of each pair of dimensions, float32 [head_dim / 2]."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def rotary_table(frequencies: Tensor, positions: int, amplitude: float = 1.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines times `amplitude`, each float32 [positions, head_dim / 2]."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=frequencies.device), frequencies)
    return angles.cos() * amplitude, angles.sin() * amplitude


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Turn x [rows, heads, head_dim] by one angle per row; cos and sin are [rows, rotated / 2]. Dimensions from
    `rotated` on stay as they are.

    With `interleaved`, dimensions 2i and 2i + 1 turn together. The result has them in the halves layout: queries and
    keys that both were turned so have the same products.
    """
    if x.device.type != "cpu":
        from pontil.gpu_ops.triton import rotary

        return rotary.turn_heads(x, x[:, :0], HeadTurn(cos, sin, interleaved))[0]
    turned, rest = x.float().split((2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]), dim=-1)
    first, second = turned.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else turned.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1).to(x.dtype)


def turn_heads(q: Tensor, k: Tensor, turn: HeadTurn) -> tuple[Tensor, Tensor]:
    """Queries [rows, heads, head_dim] and keys [rows, kv_heads, head_dim], turned as by `apply_rotary`."""
    if q.device.type != "cpu":
        from pontil.gpu_ops.triton import rotary

        return rotary.turn_heads(q, k, turn)
    if turn.norms is not None:
        query, key, eps = turn.norms
        q, k = rms_norm(q, query, eps, q.dtype), rms_norm(k, key, eps, k.dtype)
    angles = turn.cos, turn.sin, turn.interleaved
    return apply_rotary(q, *angles), apply_rotary(k, *angles)
