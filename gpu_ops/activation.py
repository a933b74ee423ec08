# SPDX-License-Identifier: Apache-2.0
"""Gated activations."""

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` for gate and up side by side: [rows, 2 * size] to [rows, size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_and_mul(gate_up: Tensor) -> Tensor:
    """`gelu(gate) * up`, gelu by its tanh formula (Hendrycks and Gimpel, 2016): [rows, 2 * size] to [rows, size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up
