# SPDX-License-Identifier: Apache-2.0
"""The parameters by which rows choose their experts, as everything that chooses takes them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ExpertChoice:
    """The choice of experts: `per_token` of `count`. A router's products become scores by softmax, or each by a
    `sigmoid`. `bias` float32 [count] counts for the choice only. Of several `groups`, experts are those of the
    `kept_groups` whose `group_best` experts have the highest sum. Scores are divided by their sum if they are to be
    `normalize`d, and multiplied by `factor`."""

    count: int
    per_token: int
    sigmoid: bool = False
    normalize: bool = True
    bias: Tensor | None = None
    groups: int = 1
    kept_groups: int = 1
    group_best: int = 1
    factor: float = 1.0
