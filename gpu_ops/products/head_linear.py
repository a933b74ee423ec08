# SPDX-License-Identifier: Apache-2.0
"""Products with a weight of its own for each head."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.products.batch_invariance import GENERATED_ROWS


class HeadLinear:
    """`y[r, h] = x[r, h] W[h]` for W [heads, inputs, outputs] and x [rows, heads, inputs].

    Every product has exactly GENERATED_ROWS rows, short ones padded with zeros, so that a row's bits do not depend on
    the number of rows (C16). On a device one kernel computes all heads, by tiles of one size.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [rows, heads, inputs] to [rows, heads, outputs]."""
        if x.device.type != "cpu":
            from pontil.gpu_ops.triton import products

            return products.product_of_heads(x, self.weight)
        rows = len(x)
        by_head = F.pad(x.transpose(0, 1), (0, 0, 0, -rows % GENERATED_ROWS))
        parts = [torch.bmm(tile, self.weight) for tile in by_head.split(GENERATED_ROWS, dim=1)]
        return torch.cat(parts, dim=1)[:, :rows].transpose(0, 1)
