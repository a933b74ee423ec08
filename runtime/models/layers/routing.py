# SPDX-License-Identifier: Apache-2.0
"""The choice of each row's experts, as a model's configuration says (runtime/models/config.py, RoutingConfig)."""

from torch import Tensor

from pontil.gpu_ops.products import routing
from pontil.runtime.models.config import ExpertConfig


def choose_experts(products: Tensor, config: ExpertConfig, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Choose from the router's products, float32 [rows, count]; `bias` float32 [count] counts for the choice only.

    Returns weights float32 and numbers int64 of each row's experts, both [rows, per_token], best first.
    """
    ways = config.routing
    return routing.choose_experts(
        products, bias, config.per_token, config.normalize, sigmoid=ways.scores == "sigmoid", groups=ways.groups,
        kept_groups=ways.kept_groups, group_best=ways.group_best, factor=ways.factor,
    )  # fmt: skip
