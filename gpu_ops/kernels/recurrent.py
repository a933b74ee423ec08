# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers by the kernels."""

from ctypes import pointer
from dataclasses import dataclass

from torch import Tensor

from pontil.gpu_ops.kernels.layer import Norms, address
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import KernelTile
from pontil.gpu_ops.kernels.weights.matrix import Matrix
from pontil.gpu_ops.kernels.weights.structures import RecurrentFields


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """The sizes of one rank's part of a recurrent layer, and its number among those of the model."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    width: int
    layer: int


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentWeights:
    """The weights of a recurrent layer but those of its products, float32: of the `norm` of a head [value_dim], of the
    `channels` [channels, width] of the convolution, and a `bias` and a `rate` of each value head's decay."""

    norm: Tensor
    channels: Tensor
    bias: Tensor
    rate: Tensor


class RecurrentHalf:
    """`hidden += after(out(gates(norm(delta rule(convolution(into(before(hidden))))))))` with the states of the tile's
    sequences. A rank of several has its own heads, and an equal share of the outputs of `out`."""

    def __init__(
        self,
        library: KernelLibrary,
        products: tuple[Matrix, Matrix],
        weights: RecurrentWeights,
        norms: Norms,
        shape: RecurrentShape,
    ) -> None:
        self.library, (into, out) = library, products
        channels = weights.channels.T.contiguous()
        self.held = (products, weights, norms, channels)
        pointers = (
            address(one) for one in (norms.before, norms.after, weights.norm, channels, weights.bias, weights.rate)
        )
        self.fields = RecurrentFields(
            into.fields,
            out.fields,
            *pointers,
            norms.epsilon,
            into.inputs,
            shape.key_heads,
            shape.value_heads,
            shape.key_dim,
            shape.value_dim,
            shape.width,
            shape.layer,
        )

    @property
    def pointers(self) -> dict[str, object]:
        return {"recurrent": pointer(self.fields)}

    def __call__(self, hidden: Tensor, tile: KernelTile) -> None:
        self.library.recurrent_half(self.fields, tile.fields, hidden)

    def store(self, hidden: Tensor, tile: KernelTile) -> bool:
        """Return False, with nothing done: a state is what all of the layer but its last product computes."""
        return False
