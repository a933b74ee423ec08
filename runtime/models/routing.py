# SPDX-License-Identifier: Apache-2.0
"""The choice of each row's experts, in the field's variants (runtime/models/config.py, RoutingConfig)."""

import torch
from torch import Tensor

from pontil.gpu_ops.elementwise import apply
from pontil.runtime.models.config import ExpertConfig, RoutingConfig

# Added to a sum of weights before it divides them: sigmoids may all be nearly 0.
SMALLEST_SUM = 1e-20


def choose_experts(products: Tensor, config: ExpertConfig, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Choose from the router's products, float32 [rows, count]; `bias` float32 [count] counts for the choice only.

    Returns weights float32 and numbers int64 of each row's experts, both [rows, per_token], best first.
    """
    routing = config.routing
    scores = products.softmax(-1) if routing.scores == "softmax" else apply(torch.sigmoid, products)
    rated = scores if bias is None else scores + bias
    if routing.groups > 1:
        rated = in_best_groups(rated, routing)
    chosen = rated.topk(config.per_token, dim=-1).indices
    weights = scores.gather(1, chosen)
    if config.normalize:
        total = weights.sum(-1, keepdim=True)
        weights = weights / (total if routing.scores == "softmax" else total + SMALLEST_SUM)
    return (weights if routing.factor == 1 else weights * routing.factor), chosen


def in_best_groups(rated: Tensor, routing: RoutingConfig) -> Tensor:
    """The ratings [rows, count] of the experts of each row's best groups; those of others are minus infinity."""
    groups = rated.view(len(rated), routing.groups, -1)
    best = groups.topk(routing.group_best, dim=-1).values.sum(-1).topk(routing.kept_groups, dim=-1).indices
    left_out = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter_(1, best, False)
    return groups.masked_fill(left_out.unsqueeze(-1), -torch.inf).view_as(rated)
