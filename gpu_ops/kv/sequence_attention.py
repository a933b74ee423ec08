# SPDX-License-Identifier: Apache-2.0
"""Attention within one sequence that is computed at once, without a KV pool, in float32."""

import torch
from torch import Tensor


def attend_within(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend q [rows, heads, head_dim] to k and v [rows, kv_heads, head_dim]; the result has q's shape.

    Every row sees all rows; with `causal` only those up to itself, and with a `window` at most that many of them. Heads
    with `sinks` float32 [heads] have a score more, of no key. The bits depend on this sequence only, and on the number
    of threads.
    """
    rows, heads, _ = q.shape
    # Copies: a product's order of addition may depend on how its operands are aligned.
    query = (q.float() * scale).transpose(0, 1).contiguous()
    keys, values = (one.float().repeat_interleave(heads // k.shape[1], dim=1).transpose(0, 1) for one in (k, v))
    scores = torch.bmm(query, keys.transpose(1, 2).contiguous())
    if causal:
        scores += hidden_places(rows, window, scores.device)
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(-1, 1, 1).expand(-1, rows, 1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :rows].contiguous()
    return torch.bmm(weights, values.contiguous()).transpose(0, 1).to(q.dtype)


def hidden_places(rows: int, window: int | None, device: torch.device) -> Tensor:
    """A mask to add to scores, float32 [rows, rows]: minus infinity for keys that a query does not see."""
    place = torch.arange(rows, device=device)
    distance = place.unsqueeze(1) - place
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return torch.zeros(rows, rows, device=device).masked_fill_(~visible, -torch.inf)
