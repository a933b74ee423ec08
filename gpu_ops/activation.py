# SPDX-License-Identifier: Apache-2.0
"""Gated activations."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.elementwise import apply


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` for gate and up side by side: [rows, 2 * size] to [rows, size]."""
    if gate_up.device.type != "cpu":
        from pontil.gpu_ops.triton import activation

        return activation.gated(gate_up, activation.SILU)
    gate, up = gate_up.chunk(2, dim=-1)
    return apply(F.silu, gate) * up


def gelu_and_mul(gate_up: Tensor) -> Tensor:
    """`gelu(gate) * up`, gelu by its tanh formula (Hendrycks and Gimpel, 2016): [rows, 2 * size] to [rows, size]."""
    if gate_up.device.type != "cpu":
        from pontil.gpu_ops.triton import activation

        return activation.gated(gate_up, activation.GELU)
    gate, up = gate_up.chunk(2, dim=-1)
    return apply(partial(F.gelu, approximate="tanh"), gate) * up


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """`gate * sigmoid(alpha * gate) * (up + 1)`, gate at most `limit` and up within it (OpenAI, 2025): [rows, 2 * size]
    to [rows, size]."""
    if gate_up.device.type != "cpu":
        from pontil.gpu_ops.triton import activation

        return activation.gated(gate_up, activation.CLAMPED, alpha, limit)
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * apply(torch.sigmoid, gate * alpha) * (up + 1)
