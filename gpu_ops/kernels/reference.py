# SPDX-License-Identifier: Apache-2.0
"""The kernels' computation in torch's operations and in float32, for one whole text at positions 0, 1, …"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.kernels.layer import HeadShape, Norms
from pontil.gpu_ops.kv.cells import decode, encode
from pontil.gpu_ops.norm import rms_norm
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.experts import ExpertChoice
from pontil.gpu_ops.rotary import apply_rotary


def normed(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    return x if weight is None else rms_norm(x, weight, epsilon, torch.float32)


def attention_half(
    hidden: Tensor,
    weights: tuple[Tensor, Tensor | None, Tensor],
    norms: Norms,
    angles: tuple[Tensor, Tensor],
    shape: HeadShape,
    layer: LayerAttention,
    cells: torch.dtype = torch.float32,
) -> Tensor:
    """hidden [rows, hidden_size]; weights are qkv [queries + 2 * keys, hidden_size], its bias, and out. Keys and values
    are rounded to `cells`."""
    qkv, bias, out = (None if weight is None else weight.float() for weight in weights)
    assert qkv is not None and out is not None
    rows, group = len(hidden), shape.heads // shape.kv_heads
    heads = F.linear(normed(hidden, norms.before, norms.epsilon), qkv, bias).view(rows, -1, shape.head_dim)
    q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
    cos, sin = (angle[:rows] for angle in angles)
    q = apply_rotary(normed(q, norms.query, norms.epsilon), cos, sin)
    k = apply_rotary(normed(k, norms.key, norms.epsilon), cos, sin)
    k, v = (decode(encode(tensor, cells)) for tensor in (k, v))
    keys, values = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    attention = attend(q, keys, values, layer.scale, layer.window)
    return hidden + normed(attention.reshape(rows, -1) @ out.T, norms.after, norms.epsilon)


def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
    """q and keys [rows, heads, head_dim], values [rows, heads, value_dim]; the result has the values' shape."""
    rows = len(q)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    distance = torch.arange(rows).unsqueeze(1) - torch.arange(rows)
    hidden_keys = (distance < 0) | (distance >= (window or rows))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden_keys, -torch.inf).softmax(-1), values)


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """compress [rank + rotated, hidden_size], down [query_rank, hidden_size] or None, query [heads * (key_dim +
    rotated), query_rank or hidden_size], keys [heads, key_dim, rank], values [heads, rank, value_dim], and out."""

    compress: Tensor
    down: Tensor | None
    query: Tensor
    keys: Tensor
    values: Tensor
    out: Tensor


def latent_half(
    hidden: Tensor,
    weights: LatentWeights,
    norms: Norms,
    angles: tuple[Tensor, Tensor],
    epsilon: float,
    scale: float,
    cells: torch.dtype = torch.float32,
) -> Tensor:
    """Latent attention with a key and a value of each head for each position; rotated dimensions are interleaved."""
    rows, (heads, key_dim, rank) = len(hidden), weights.keys.shape
    cos, sin = (angle[:rows] for angle in angles)
    x = normed(hidden, norms.before, norms.epsilon)
    below = x if weights.down is None else normed(x @ weights.down.float().T, norms.query, epsilon)
    q = (below @ weights.query.float().T).view(rows, heads, -1)
    raw_latent, key = (x @ weights.compress.float().T).split((rank, 2 * cos.shape[1]), dim=1)
    key = apply_rotary(key.unsqueeze(1), cos, sin, interleaved=True)
    cell_rows = decode(encode(torch.cat((normed(raw_latent, norms.key, epsilon).unsqueeze(1), key), dim=-1), cells))
    latent, key = cell_rows[:, 0, :rank], cell_rows[..., rank:].expand(-1, heads, -1)
    keys = torch.cat((torch.einsum("rl,hkl->rhk", latent, weights.keys.float()), key), dim=-1)
    values = torch.einsum("rl,hlv->rhv", latent, weights.values.float())
    rotary_q = apply_rotary(q[..., key_dim:], cos, sin, interleaved=True)
    attention = attend(torch.cat((q[..., :key_dim], rotary_q), dim=-1), keys, values, scale, None)
    return hidden + normed(attention.reshape(rows, -1) @ weights.out.float().T, norms.after, norms.epsilon)


def mlp_half(hidden: Tensor, weights: tuple[Tensor, Tensor, Tensor], norms: Norms, gelu: bool) -> Tensor:
    """weights are gate and up [inner, hidden_size], and down."""
    gate, up, down = (weight.float() for weight in weights)
    x = normed(hidden, norms.before, norms.epsilon)
    active = F.gelu(x @ gate.T, approximate="tanh") if gelu else F.silu(x @ gate.T)
    return hidden + normed((active * (x @ up.T)) @ down.T, norms.after, norms.epsilon)


def expert_half(
    hidden: Tensor,
    choice: ExpertChoice,
    router: Tensor,
    experts: Sequence[tuple[Tensor, Tensor, Tensor]],
    norms: Norms,
    dtype: torch.dtype,
) -> Tensor:
    """Rows that are rounded to `dtype` choose among the experts, each of them gate, up and down. Without groups."""
    x = normed(hidden, norms.before, norms.epsilon).to(dtype).float()
    products = x @ router.T
    scores = products.sigmoid() if choice.sigmoid else products.softmax(-1)
    best = (scores if choice.bias is None else scores + choice.bias).topk(choice.per_token, dim=-1).indices
    ratings = torch.zeros_like(scores).scatter(1, best, scores.gather(1, best))
    if choice.normalize:
        ratings = ratings / ratings.sum(-1, keepdim=True)
    expert_outputs = torch.stack([mlp_half(x, expert, Norms(0.0), gelu=False) - x for expert in experts], dim=1)
    total = (expert_outputs * ratings.unsqueeze(-1)).sum(1) * choice.factor
    return hidden + normed(total, norms.after, norms.epsilon)
