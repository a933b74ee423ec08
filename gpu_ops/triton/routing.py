# SPDX-License-Identifier: Apache-2.0
"""The choice of each row's experts. One program computes one row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.parameters.experts import ExpertChoice
from pontil.gpu_ops.triton.launch import launch, power_of_2


@triton.jit
def choose_kernel(
    products, bias, weights, expert_ids, row_stride, factor, smallest, COUNT: tl.constexpr, PER_TOKEN: tl.constexpr,
    GROUPS: tl.constexpr, KEPT: tl.constexpr, GROUP_BEST: tl.constexpr, SIGMOID: tl.constexpr, BIASED: tl.constexpr,
    NORMALIZE: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_CHOSEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    size: tl.constexpr = COUNT // GROUPS
    group, member = tl.arange(0, BLOCK_GROUPS), tl.arange(0, BLOCK_SIZE)
    inside = (group < GROUPS)[:, None] & (member < size)[None, :]
    number = tl.where(inside, group[:, None] * size + member[None, :], COUNT)
    scores = tl.load(products + row * row_stride + number, mask=inside, other=float("-inf"))
    if SIGMOID:
        scores = tl.sigmoid(scores)
    else:
        scores = tl.exp(scores - tl.max(tl.max(scores, 1), 0))
        scores = scores / tl.sum(tl.sum(scores, 1), 0)
    ratings = scores
    if BIASED:
        ratings += tl.load(bias + number, mask=inside, other=0.0)
    ratings = tl.where(inside, ratings, float("-inf"))
    if GROUPS > 1:
        remaining, sums = ratings, tl.zeros((BLOCK_GROUPS,), tl.float32)
        for _ in tl.static_range(GROUP_BEST):
            best = tl.max(remaining, 1)
            sums += best
            first = tl.min(tl.where(remaining == best[:, None], number, COUNT), 1)
            remaining = tl.where(number == first[:, None], float("-inf"), remaining)
        sums = tl.where(group < GROUPS, sums, float("-inf"))
        kept_groups = group < 0
        for _ in tl.static_range(KEPT):
            first = tl.min(tl.where(sums == tl.max(sums, 0), group, GROUPS), 0)
            kept_groups = kept_groups | (group == first)
            sums = tl.where(group == first, float("-inf"), sums)
        ratings = tl.where(kept_groups[:, None], ratings, float("-inf"))
    place = tl.arange(0, BLOCK_CHOSEN)
    shares = tl.zeros((BLOCK_CHOSEN,), tl.float32)
    numbers = tl.zeros((BLOCK_CHOSEN,), tl.int32)
    for turn in tl.static_range(PER_TOKEN):
        highest = tl.max(tl.max(ratings, 1), 0)
        # Of equal ones the lowest number; a row of NaN chooses the last expert rather than none.
        first = tl.min(tl.min(tl.where(ratings == highest, number, COUNT - 1), 1), 0)
        share = tl.sum(tl.sum(tl.where(number == first, scores, 0.0), 1), 0)
        shares = tl.where(place == turn, share, shares)
        numbers = tl.where(place == turn, first, numbers)
        ratings = tl.where(number == first, float("-inf"), ratings)
    if NORMALIZE:
        shares = shares / (tl.sum(shares, 0) + smallest)
    tl.store(weights + row * PER_TOKEN + place, shares * factor, mask=place < PER_TOKEN)
    tl.store(expert_ids + row * PER_TOKEN + place, numbers.to(tl.int64), mask=place < PER_TOKEN)


def choose_experts(products: Tensor, choice: ExpertChoice, smallest_sum: float) -> tuple[Tensor, Tensor]:
    """Choose from products float32 [rows, count]: weights float32 and numbers int64, both [rows, per_token], best
    first. `smallest_sum` is added to the sum that divides scores."""
    (rows, count), per_token, bias = products.shape, choice.per_token, choice.bias
    weights = torch.empty(rows, per_token, dtype=torch.float32, device=products.device)
    expert_ids = torch.empty(rows, per_token, dtype=torch.int64, device=products.device)
    launch(
        choose_kernel, (rows,), products, products if bias is None else bias, weights, expert_ids, products.stride(0),
        choice.factor, smallest_sum, COUNT=count, PER_TOKEN=per_token, GROUPS=choice.groups, KEPT=choice.kept_groups,
        GROUP_BEST=choice.group_best, SIGMOID=choice.sigmoid, BIASED=bias is not None, NORMALIZE=choice.normalize,
        BLOCK_GROUPS=power_of_2(choice.groups), BLOCK_SIZE=power_of_2(count // choice.groups),
        BLOCK_CHOSEN=power_of_2(per_token), num_warps=1,
    )  # fmt: skip
    return weights, expert_ids
