# SPDX-License-Identifier: Apache-2.0
"""Latent attention by the kernels."""

import ctypes
from collections.abc import Sequence
from ctypes import pointer
from dataclasses import dataclass

from torch import Tensor

from pontil.gpu_ops.kernels.layer import Norms, Rotation, address
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import KernelTile
from pontil.gpu_ops.kernels.weights.matrix import Matrix, pack
from pontil.gpu_ops.kernels.weights.structures import LatentFields, MatrixFields
from pontil.gpu_ops.parameters.attention import LayerAttention


class HeadMatrices:
    """A weight of its own for each head: `y[r, h] = x[r, h] W[h]` for W [heads, inputs, outputs]."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self.inputs, self.outputs = matrices[0].inputs, matrices[0].outputs
        self.matrices = matrices
        self.fields = (MatrixFields * len(matrices))(*(matrix.fields for matrix in matrices))

    @classmethod
    def packed(cls, weight: Tensor) -> "HeadMatrices":
        return cls([pack(head_weight.T) for head_weight in weight])


@dataclass(frozen=True, slots=True)
class LatentMatrices:
    """The products of latent attention. `query` is applied to what `down` makes of the hidden state, or, without it, to
    the hidden state. A head's query goes through `absorb`, and its weighted sum of latents through `expand`."""

    compress: Matrix
    down: Matrix | None
    query: Matrix
    absorb: HeadMatrices
    expand: HeadMatrices
    out: Matrix


class LatentHalf:
    """`hidden += after(out(expand(attention(absorb(query(before(hidden)))))))`. `norms` are of the input, the output,
    the latent of queries and the latent of keys; the last two have an epsilon of their own.

    A rank of several has its own heads in `query`, `absorb` and `expand`, and an equal share of the outputs of
    `out`."""

    def __init__(
        self,
        library: KernelLibrary,
        matrices: LatentMatrices,
        norms: Norms,
        rotation: Rotation,
        epsilon: float,
        layer: LayerAttention,
    ) -> None:
        self.library = library
        self.held = (matrices, norms, rotation)
        absorb, expand, heads = matrices.absorb, matrices.expand, len(matrices.absorb.matrices)
        down = MatrixFields() if matrices.down is None else matrices.down.fields
        self.fields = LatentFields(
            matrices.compress.fields, down, matrices.query.fields, matrices.out.fields,
            *(ctypes.cast(head_matrices.fields, ctypes.POINTER(MatrixFields)) for head_matrices in (absorb, expand)),
            *(address(tensor) for tensor in (norms.before, norms.after, norms.query, norms.key)),
            rotation.fields, norms.epsilon, epsilon, layer.scale, matrices.compress.inputs, heads, absorb.outputs,
            absorb.inputs, expand.outputs, layer.layer, layer.window or 0,
        )  # fmt: skip
        self.storing = LatentFields.from_buffer_copy(self.fields)
        self.storing.heads = 0

    @property
    def pointers(self) -> dict[str, object]:
        return {"latent": pointer(self.fields)}

    def __call__(self, hidden: Tensor, tile: KernelTile) -> None:
        self.library.latent_half(self.fields, tile.fields, hidden)

    def store(self, hidden: Tensor, tile: KernelTile) -> bool:
        self.library.latent_half(self.storing, tile.fields, hidden)
        return True
