# SPDX-License-Identifier: Apache-2.0
"""One vector for a sequence, from the hidden states of its rows."""

import torch
from torch import Tensor


def pooled(hidden: Tensor, pooling: str) -> Tensor:
    """Pool hidden states, float32 [rows, hidden_size], to [hidden_size]: their mean, the last row, or the first one
    (`cls`)."""
    if pooling == "mean":
        return hidden.mean(0)
    return hidden[-1] if pooling == "last" else hidden[0]


def unit(vector: Tensor, dimensions: int | None = None) -> Tensor:
    """The first `dimensions` numbers of a vector, all by default, scaled to length 1. A vector of zeros stays one."""
    kept = vector[:dimensions].double()
    length = kept.norm()
    return (kept / length if length > 0 else kept).to(torch.float32)
