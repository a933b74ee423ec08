# SPDX-License-Identifier: Apache-2.0
"""Gated activations."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.elementwise import apply


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` for gate and up side by side: [rows, 2 * size] to [rows, size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return apply(F.silu, gate) * up


def gelu_and_mul(gate_up: Tensor) -> Tensor:
    """`gelu(gate) * up`, gelu by its tanh formula (Hendrycks and Gimpel, 2016): [rows, 2 * size] to [rows, size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return apply(partial(F.gelu, approximate="tanh"), gate) * up
