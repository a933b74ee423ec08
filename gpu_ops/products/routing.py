# SPDX-License-Identifier: Apache-2.0
"""The choice of each row's experts from a router's products, in the field's variants."""

import torch
from torch import Tensor

from pontil.gpu_ops.elementwise import apply
from pontil.gpu_ops.parameters.experts import ExpertChoice

# Added to a sum of sigmoids before it divides them: they may all be nearly 0.
SMALLEST_SUM = 1e-20


def choose_experts(products: Tensor, choice: ExpertChoice) -> tuple[Tensor, Tensor]:
    """Choose from products float32 [rows, count].

    Returns weights float32 and numbers int64 of each row's experts, both [rows, per_token], best first.
    """
    if products.device.type != "cpu":
        from pontil.gpu_ops.triton import routing

        return routing.choose_experts(products, choice, SMALLEST_SUM if choice.sigmoid else 0.0)
    scores = apply(torch.sigmoid, products) if choice.sigmoid else products.softmax(-1)
    rated = scores if choice.bias is None else scores + choice.bias
    if choice.groups > 1:
        rated = in_best_groups(rated, choice)
    numbers = rated.topk(choice.per_token, dim=-1).indices
    weights = scores.gather(1, numbers)
    if choice.normalize:
        total = weights.sum(-1, keepdim=True)
        weights = weights / (total + SMALLEST_SUM if choice.sigmoid else total)
    return (weights if choice.factor == 1 else weights * choice.factor), numbers


def in_best_groups(rated: Tensor, choice: ExpertChoice) -> Tensor:
    """The ratings [rows, count] of the experts of each row's best groups; those of others are minus infinity."""
    divided = rated.view(len(rated), choice.groups, choice.count // choice.groups)
    best = divided.topk(choice.group_best, dim=-1).values.sum(-1).topk(choice.kept_groups, dim=-1).indices
    left_out = torch.ones_like(divided[..., 0], dtype=torch.bool).scatter_(1, best, False)
    return divided.masked_fill(left_out.unsqueeze(-1), -torch.inf).view_as(rated)
