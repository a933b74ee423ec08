# SPDX-License-Identifier: Apache-2.0
"""The choice of each row's experts from a router's products, in the field's variants."""

import torch
from torch import Tensor

from pontil.gpu_ops.elementwise import apply

# Added to a sum of sigmoids before it divides them: they may all be nearly 0.
SMALLEST_SUM = 1e-20


def choose_experts(
    products: Tensor, bias: Tensor | None, per_token: int, normalize: bool, *, sigmoid: bool = False, groups: int = 1,
    kept_groups: int = 1, group_best: int = 1, factor: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Choose from products float32 [rows, count]; `bias` float32 [count] counts for the choice only.

    Scores are the softmax of the products, or their `sigmoid`. With several `groups` of neighbours, only experts of the
    `kept_groups` best of them are chosen; a group's score is the sum of its `group_best` best. The weights are divided
    by their sum to `normalize` them, and multiplied by `factor`.

    Returns weights float32 and numbers int64 of each row's experts, both [rows, per_token], best first.
    """
    if products.device.type != "cpu":
        from pontil.gpu_ops.triton import routing

        return routing.choose_experts(
            products, bias, per_token, normalize, sigmoid=sigmoid, groups=groups, kept_groups=kept_groups,
            group_best=group_best, factor=factor, smallest_sum=SMALLEST_SUM if sigmoid else 0.0,
        )  # fmt: skip
    scores = apply(torch.sigmoid, products) if sigmoid else products.softmax(-1)
    rated = scores if bias is None else scores + bias
    if groups > 1:
        rated = in_best_groups(rated, groups, kept_groups, group_best)
    chosen = rated.topk(per_token, dim=-1).indices
    weights = scores.gather(1, chosen)
    if normalize:
        total = weights.sum(-1, keepdim=True)
        weights = weights / (total + SMALLEST_SUM if sigmoid else total)
    return (weights if factor == 1 else weights * factor), chosen


def in_best_groups(rated: Tensor, groups: int, kept: int, group_best: int) -> Tensor:
    """The ratings [rows, count] of the experts of each row's best groups; those of others are minus infinity."""
    divided = rated.view(len(rated), groups, -1)
    best = divided.topk(group_best, dim=-1).values.sum(-1).topk(kept, dim=-1).indices
    left_out = torch.ones_like(divided[..., 0], dtype=torch.bool).scatter_(1, best, False)
    return divided.masked_fill(left_out.unsqueeze(-1), -torch.inf).view_as(rated)
