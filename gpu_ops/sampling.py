# SPDX-License-Identifier: Apache-2.0
"""From logits to token ids. Each row is drawn alone, from a number that was fixed before the batch was formed."""

import torch
from torch import Tensor


def greedy(logits: Tensor) -> Tensor:
    """The id of the highest logit of each row [rows, vocabulary]; of equal ones the lowest id."""
    return logits.argmax(dim=-1)


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw one id per row by inversion of the cumulative distribution.

    logits float32 [rows, vocabulary]; [rows] each: temperature > 0, top_k (0: all), top_p in (0, 1], uniform in [0, 1).
    top_k is applied first, then top_p to what remains, as the OpenAI-compatible servers do. Candidates are ordered by
    falling probability, equal ones by rising id.
    """
    scaled = logits.double() / temperature.double().unsqueeze(1)
    ordered, ids = torch.sort(scaled, dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    limit = torch.where(top_k > 0, top_k, logits.shape[1]).unsqueeze(1)
    ordered = ordered.masked_fill(rank >= limit, -torch.inf)
    probabilities = torch.softmax(ordered, dim=-1)
    before = probabilities.cumsum(-1) - probabilities
    kept = torch.where(before < top_p.double().unsqueeze(1), probabilities, 0.0)
    kept[:, 0] = probabilities[:, 0]
    cumulative = kept.cumsum(-1)
    target = uniform.double().unsqueeze(1) * cumulative[:, -1:]
    # The first candidate whose cumulative mass exceeds the target; rounding must never reach past the last kept one.
    place = (cumulative <= target).sum(-1, keepdim=True)
    last = (kept > 0).sum(-1, keepdim=True) - 1
    return ids.gather(1, torch.minimum(place, last)).squeeze(1)
