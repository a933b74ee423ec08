# SPDX-License-Identifier: Apache-2.0
"""Products of any number of rows, batch-invariant without a measurement."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.products.batch_invariance import GENERATED_ROWS


def in_full_tiles(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function(x)` for x [rows, ...], of which each row of the result comes from its own row of x.

    The function sees exactly GENERATED_ROWS rows at a time, short tiles padded with zeros, so a row's bits do not
    depend on how many others there are (C16).
    """
    parts = []
    for part in x.split(GENERATED_ROWS):
        padded = F.pad(part, (0, 0) * (x.ndim - 1) + (0, GENERATED_ROWS - len(part)))
        parts.append(function(padded)[: len(part)])
    return torch.cat(parts) if len(parts) != 1 else parts[0]
