# SPDX-License-Identifier: Apache-2.0
"""The halves of layers, computed by kernels: each reads the residual stream and adds to it."""

from collections.abc import Sequence
from ctypes import pointer
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import KernelTile
from pontil.gpu_ops.kernels.weights.matrix import GROUP, PANEL, Matrix
from pontil.gpu_ops.kernels.weights.structures import (
    CLAMPED,
    GELU_TANH,
    KINDS,
    SILU,
    AttentionFields,
    LayerFields,
    MlpFields,
    RotationFields,
    TileFields,
)
from pontil.gpu_ops.parameters.attention import LayerAttention


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The heads of one rank. They may be `gated`: then qkv has a gate for each number of the queries at its end."""

    heads: int
    kv_heads: int
    head_dim: int
    gated: bool = False


@dataclass(frozen=True, slots=True)
class Norms:
    """Weights of the norms of one half, float32: of its input, of its output, of each query and of each key. None where
    the architecture has no such norm."""

    epsilon: float
    before: Tensor | None = None
    after: Tensor | None = None
    query: Tensor | None = None
    key: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of all positions, float32 [positions, rotated / 2]. Dimensions of the halves of what is rotated
    turn together, or `interleaved` ones, which are in halves afterwards."""

    cosines: Tensor
    sines: Tensor
    interleaved: bool = False

    @property
    def fields(self) -> RotationFields:
        dim = 2 * self.cosines.shape[1]
        return RotationFields(self.cosines.data_ptr(), self.sines.data_ptr(), dim, self.interleaved)


@dataclass(frozen=True, slots=True)
class GatedKind:
    """The activation of a gated MLP: silu, or gelu by its tanh formula. With `clamp`, alpha and limit: silu of alpha
    times the gate, by one more than the up, both within the limit."""

    gelu: bool = False
    clamp: tuple[float, float] | None = None


def can_compute(dtype: torch.dtype, *sizes: int) -> bool:
    """Return whether the kernels take weights of this type, and heads and products with so many inputs."""
    return dtype in KINDS and all(size % PANEL == 0 for size in sizes)


class AttendingHalf(Protocol):
    """The attention of a layer, which reads and writes a pool."""

    @property
    def pointers(self) -> dict[str, object]:
        """The field of a layer that this half is, and its own fields' address."""

    def __call__(self, hidden: Tensor, tile: KernelTile) -> None:
        """Change hidden float32 [rows, hidden_size] in place."""

    def store(self, hidden: Tensor, tile: KernelTile) -> bool:
        """Store the keys and values of these rows and compute nothing else. Return False, with nothing done, if that is
        not possible."""


class FeedingHalf(Protocol):
    """The part of a layer behind attention."""

    @property
    def pointers(self) -> dict[str, object]: ...

    def __call__(self, x: Tensor, result: Tensor) -> None:
        """Add the results of x to result, both float32 [rows, hidden_size]; they may be the same tensor."""


class AttentionHalf:
    """`hidden += after(out(attention(heads(qkv(before(hidden))))))`, where heads are normed and turned before they are
    stored.

    A rank of several has its own heads, `shape`, in `qkv` and an equal share of the outputs of `out`, whose inputs are
    all heads; then all ranks of the library's group make the same calls."""

    def __init__(
        self,
        library: KernelLibrary,
        qkv: Matrix,
        out: Matrix,
        norms: Norms,
        rotation: Rotation,
        shape: HeadShape,
        layer: LayerAttention,
    ) -> None:
        self.library = library
        self.held = (qkv, out, norms, rotation, layer)
        pointers = (address(tensor) for tensor in (norms.before, norms.after, norms.query, norms.key, layer.sinks))
        sizes = (qkv.inputs, shape.heads, shape.kv_heads, shape.head_dim)
        self.fields = AttentionFields(
            qkv.fields, out.fields, *pointers, rotation.fields, norms.epsilon, layer.scale, *sizes, layer.layer,
            layer.window or 0, shape.gated, 0,
        )  # fmt: skip
        self.storing = None if sizes[1] * sizes[3] % GROUP else self.without_heads(qkv)

    def without_heads(self, qkv: Matrix) -> AttentionFields:
        fields = AttentionFields.from_buffer_copy(self.fields)
        fields.qkv, fields.heads = qkv.from_output(fields.heads * fields.head_dim), 0
        return fields

    @property
    def pointers(self) -> dict[str, object]:
        return {"attention": pointer(self.fields)}

    def __call__(self, hidden: Tensor, tile: KernelTile) -> None:
        self.library.attention_half(self.fields, tile.fields, hidden)

    def store(self, hidden: Tensor, tile: KernelTile) -> bool:
        """Return False, with nothing done, if queries and keys share a panel."""
        if self.storing is not None:
            self.library.attention_half(self.storing, tile.fields, hidden)
        return self.storing is not None


class MlpHalf:
    """`result += after(down(activation(gate) * up))` of `before(x)`; `gate_up` is as `matrix.alternate` makes it.

    It is divided, as AttentionHalf may be, if `down` has more inputs than there are gates."""

    def __init__(self, library: KernelLibrary, gate_up: Matrix, down: Matrix, norms: Norms, kind: GatedKind) -> None:
        self.library = library
        self.held = (gate_up, down, norms)
        activation = CLAMPED if kind.clamp else GELU_TANH if kind.gelu else SILU
        self.fields = MlpFields(
            gate_up.fields, down.fields, address(norms.before), address(norms.after), norms.epsilon,
            *(kind.clamp or (0.0, 0.0)), gate_up.inputs, gate_up.outputs // 2, activation,
        )  # fmt: skip

    @property
    def pointers(self) -> dict[str, object]:
        return {"mlp": pointer(self.fields)}

    def __call__(self, x: Tensor, result: Tensor) -> None:
        self.library.mlp_half(self.fields, x, result)


class Layers:
    """Several layers in one call, with no Python in between."""

    def __init__(self, library: KernelLibrary, halves: Sequence[tuple[AttendingHalf, FeedingHalf]]) -> None:
        self.library, self.held = library, tuple(halves)
        pairs = [LayerFields(**attention.pointers, **feed.pointers) for attention, feed in halves]
        self.fields = (LayerFields * len(pairs))(*pairs)

    def __call__(self, hidden: Tensor, tile: KernelTile) -> None:
        """hidden float32 [rows, hidden_size], in place."""
        self.library.layers(self.fields, tile.fields, hidden)

    def take_kept(self, accepted: TileFields) -> None:
        """Take kept rows of a tile into the states of those layers that have such."""
        self.library.take_kept(self.fields, accepted)


def address(values: Tensor | None) -> int | None:
    return None if values is None else values.data_ptr()
