# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule (Yang et al., 2024, arXiv 2412.06464), position after position.

All shapes are those of one position, whatever the number of rows: so a row's bits depend on what is before it in its
sequence only, and rows may be cut in any way (C16).
"""

import torch
from torch import Tensor

from pontil.gpu_ops.elementwise import apply

NORM_EPSILON = 1e-6


def causal_convolution(before: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Convolve each channel of x float32 [rows, channels] with its own weight [channels, width]; `before` [width - 1,
    channels] are the rows in front, and become those in front of the row that follows. Of the result silu is taken."""
    rows = torch.cat((before, x))
    count, width = len(x), weight.shape[1]
    total = rows[:count] * weight[:, 0]
    for place in range(1, width):
        total = total + rows[place : place + count] * weight[:, place]
    before.copy_(rows[count:])
    return apply(torch.nn.functional.silu, total)


def unit(x: Tensor) -> Tensor:
    """x [..., size] divided by its length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPSILON)


def gated_delta(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor, state: Tensor) -> Tensor:
    """Read the state [value_heads, key_dim, value_dim] with each row's queries after it has taken in the row: it is
    multiplied by the `decay`, then what it answers to the key moves towards the value by the `strength`.

    q and k [rows, key_heads, key_dim], v [rows, value_heads, value_dim], decay and strength [rows, value_heads]. The
    result has the shape of v; the state is changed in place. All are float32."""
    shared = state.shape[0] // q.shape[1]
    q, k = (x.repeat_interleave(shared, dim=1).unsqueeze(-1) for x in (q, k))
    out = torch.empty_like(v)
    for row in range(len(v)):
        state *= decay[row].view(-1, 1, 1)
        wrong = v[row] - (state * k[row]).sum(1)
        state += k[row] * (wrong * strength[row].unsqueeze(-1)).unsqueeze(1)
        out[row] = (state * q[row]).sum(1)
    return out
