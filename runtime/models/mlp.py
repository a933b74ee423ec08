# SPDX-License-Identifier: Apache-2.0
"""The gated MLP (Shazeer, 2020) of one layer."""

from collections.abc import Callable

from torch import Tensor

from pontil.gpu_ops.activation import silu_and_mul
from pontil.gpu_ops.linear import Linear
from pontil.runtime.models.weights import Weights

GatedActivation = Callable[[Tensor], Tensor]


class GatedMlp:
    """`down(activation(gate(x)) * up(x))`; gate and up are one product. Names under `prefix` are Hugging Face's."""

    def __init__(
        self, weights: Weights, prefix: str, hidden: int, inner: int, activation: GatedActivation = silu_and_mul
    ) -> None:
        self.gate_up = weights.linear(hidden, (prefix + "gate_proj", inner), (prefix + "up_proj", inner))
        self.down = weights.linear(inner, (prefix + "down_proj", hidden))
        self.activation = activation

    @property
    def linears(self) -> list[Linear]:
        return [self.gate_up, self.down]

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, hidden_size] in the weights' dtype, to the same shape."""
        return self.down(self.activation(self.gate_up(x)))
