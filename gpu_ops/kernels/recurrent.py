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
    """The sizes of one rank's part of a recurrent layer, its number among those of the model, and the epsilon of its
    own norm."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    width: int
    layer: int
    epsilon: float


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentWeights:
    """The weights of a recurrent layer but those of its products, float32: of the `norm` of a head [value_dim], of the
    `channels` [channels, width] of the convolution, and a `bias` and a `rate` of each value head's decay. A state space
    also has a `channel_bias` [channels] and a `direct` way for each value head, and a norm [value_heads * value_dim] of
    the heads that share a key."""

    norm: Tensor
    channels: Tensor
    bias: Tensor
    rate: Tensor
    channel_bias: Tensor | None = None
    direct: Tensor | None = None


class RecurrentHalf:
    """`hidden += after(out(gates(norm(delta rule(convolution(into(before(hidden))))))))` with the states of the tile's
    sequences, or the same of a state space, whose gates come before its norm. A rank of several has its own
    heads, and an equal share of the outputs of `out`."""

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
        vectors = weights.norm, channels, weights.channel_bias, weights.bias, weights.rate, weights.direct
        pointers = map(address, (norms.before, norms.after, *vectors))
        self.fields = RecurrentFields(
            into.fields,
            out.fields,
            *pointers,
            norms.epsilon,
            shape.epsilon,
            into.inputs,
            shape.key_heads,
            shape.value_heads,
            shape.key_dim,
            shape.value_dim,
            shape.width,
            shape.layer,
            0,
        )

    @property
    def pointers(self) -> dict[str, object]:
        return {"recurrent": pointer(self.fields)}

    def __call__(self, hidden: Tensor, tile: KernelTile) -> None:
        self.library.recurrent_half(self.fields, tile.fields, hidden)

    def store(self, hidden: Tensor, tile: KernelTile) -> bool:
        """Return False, with nothing done: a state is what all of the layer but its last product computes."""
        return False
