# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square norms and their weights."""

import torch
from torch import Tensor

from pontil.gpu_ops.norm import add_rms_norm, rms_norm
from pontil.runtime.models.weights import Weights


class Norm:
    """`x / rms(x) * weight` over the last axis, float32 in, `dtype` out. Gemma stores the weight minus one:
    `offset`."""

    def __init__(self, weights: Weights, name: str, size: int, eps: float, offset: float = 0.0) -> None:
        self.weight = weights.take(f"{name}.weight", size, dtype=torch.float32) + offset
        self.eps = eps

    @property
    def for_kernels(self) -> Tensor | None:
        """The weight as kernels take it: None where there is no norm."""
        return self.weight

    def __call__(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return rms_norm(x, self.weight, self.eps, dtype)

    def after_sum(self, hidden: Tensor, addend: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The sum of hidden float32 and addend [rows, size], float32, and its norm, of `dtype`."""
        return add_rms_norm(hidden, addend, self.weight, self.eps, dtype)


class Unnormed(Norm):
    """A norm that an architecture leaves out: it changes the type only."""

    def __init__(self) -> None:
        self.eps = 0.0

    @property
    def for_kernels(self) -> None:
        return None

    def __call__(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return x.to(dtype)

    def after_sum(self, hidden: Tensor, addend: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        total = hidden + addend
        return total, total.to(dtype)
