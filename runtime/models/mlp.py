# SPDX-License-Identifier: Apache-2.0
"""The gated MLP (Shazeer, 2020) of one layer."""

from collections.abc import Callable

import torch
from torch import Tensor

from pontil.gpu_ops.activation import gelu_and_mul, silu_and_mul
from pontil.gpu_ops.collectives.communicator import SingleRank
from pontil.gpu_ops.kernels.layer import MlpHalf, Norms
from pontil.gpu_ops.kernels.linear import Product, matrix_of
from pontil.runtime.models.partition import Cut, by_columns, whole
from pontil.runtime.models.weights import Weights

GatedActivation = Callable[[Tensor], Tensor]


class GatedMlp:
    """`down(activation(gate(x)) * up(x))`; gate and up are one product. Names under `prefix` are Hugging Face's. The
    MLP is divided over the ranks by columns, or each rank has a `whole` one."""

    def __init__(
        self, weights: Weights, prefix: str, hidden: int, inner: int, activation: GatedActivation = silu_and_mul,
        cut: Cut = by_columns, bias: bool = False,
    ) -> None:  # fmt: skip
        self.gate_up = weights.gate_and_up(hidden, prefix + "gate_proj", prefix + "up_proj", inner, cut, bias)
        self.down = weights.linear(inner, (prefix + "down_proj", hidden), bias=bias, cut=cut)
        self.exchange = SingleRank().gather_columns if cut is whole else weights.communicator.gather_columns
        self.activation = activation
        self.half = None
        if weights.kernels is not None:
            both = (matrix_of(self.gate_up), matrix_of(self.down))
            self.half = MlpHalf(weights.kernels, *both, Norms(0.0), activation is gelu_and_mul)

    @property
    def linears(self) -> list[Product]:
        return [self.gate_up, self.down]

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [rows, hidden_size] in the weights' dtype to the same shape; float32 from the kernels."""
        if self.half is not None:
            result = torch.zeros(x.shape)
            self.half(x.float(), result)
            return result
        return self.exchange(self.down(self.exchange(self.activation(self.gate_up(x)))))
