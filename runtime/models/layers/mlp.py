# SPDX-License-Identifier: Apache-2.0
"""The gated MLP (Shazeer, 2020) of one layer."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from pontil.gpu_ops.activation import clamped_swiglu, gelu_and_mul, silu_and_mul
from pontil.gpu_ops.kernels.layer import GatedKind, MlpHalf, Norms
from pontil.gpu_ops.kernels.linear import Product, matrix_of
from pontil.runtime.models.partition import Cut, by_columns
from pontil.runtime.models.weights import Weights

GatedActivation = Callable[[Tensor], Tensor]
SILU, GELU = GatedKind(), GatedKind(gelu=True)


def activation_of(kind: GatedKind) -> GatedActivation:
    if kind.clamp is None:
        return gelu_and_mul if kind.gelu else silu_and_mul
    alpha, limit = kind.clamp
    return partial(clamped_swiglu, alpha=alpha, limit=limit)


class GatedMlp:
    """`down(activation(gate(x)) * up(x))`; gate and up are one product. Names under `prefix` are Hugging Face's. The
    MLP is divided over the ranks by columns, or each rank has a `whole` one."""

    takes_rows = False

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        hidden: int,
        inner: int,
        kind: GatedKind = SILU,
        cut: Cut = by_columns,
        bias: bool = False,
    ) -> None:
        self.gate_up = weights.gate_and_up(hidden, prefix + "gate_proj", prefix + "up_proj", inner, cut, bias)
        self.down = weights.joining(inner, prefix + "down_proj", hidden, cut, bias)
        self.kind, self.activation, self.kernels = kind, activation_of(kind), weights.kernels

    @property
    def linears(self) -> list[Product]:
        return [self.gate_up, self.down.product]

    def half(self, norms: Norms) -> MlpHalf:
        """The same by the kernels, with these norms of a layer."""
        assert self.kernels is not None
        return MlpHalf(self.kernels, matrix_of(self.gate_up), matrix_of(self.down.product), norms, self.kind)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [rows, hidden_size] in the weights' dtype to the same shape."""
        assert self.kernels is None
        return self.down(self.activation(self.gate_up(x)))
