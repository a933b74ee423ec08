# SPDX-License-Identifier: Apache-2.0
"""The attention and MLP halves of a layer, computed by kernels: each reads the residual stream and adds to it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.matrix import GROUP, PANEL, Matrix
from pontil.gpu_ops.kernels.structures import GELU_TANH, KINDS, SILU, AttentionFields, LayerFields, MlpFields
from pontil.gpu_ops.kernels.tile import KernelTile

# The largest number of query heads that may share one key/value head.
MOST_GROUP = 48


@dataclass(frozen=True, slots=True)
class HeadShape:
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Norms:
    """Weights of the norms of one half, float32: of its input, of its output, of each query and of each key. None where
    the architecture has no such norm."""

    epsilon: float
    before: Tensor | None = None
    after: Tensor | None = None
    query: Tensor | None = None
    key: Tensor | None = None


def can_compute(dtype: torch.dtype, shape: HeadShape, *inputs: int) -> bool:
    """Return whether the kernels take weights of this type, heads of this shape, and products with so many inputs."""
    whole = all(size % PANEL == 0 for size in (shape.head_dim, *inputs))
    return dtype in KINDS and whole and shape.heads // shape.kv_heads <= MOST_GROUP


class AttentionHalf:
    """`hidden += after(out(attention(heads(qkv(before(hidden))))))`, where heads are normed and turned before they are
    stored. `angles` are cosines and sines of all positions, float32 [positions, head_dim / 2].

    A rank of several has its own heads, `shape`, in `qkv` and an equal share of the outputs of `out`, whose inputs are
    all heads; then all ranks of the library's group make the same calls."""

    def __init__(
        self,
        library: KernelLibrary,
        qkv: Matrix,
        out: Matrix,
        norms: Norms,
        angles: tuple[Tensor, Tensor],
        shape: HeadShape,
        layer: int,
        scale: float,
        window: int | None,
    ) -> None:
        self.library = library
        self.held = (qkv, out, norms, angles)
        pointers = (address(one) for one in (norms.before, norms.after, norms.query, norms.key, *angles))
        sizes = (qkv.inputs, shape.heads, shape.kv_heads, shape.head_dim)
        self.fields = AttentionFields(
            qkv.fields, out.fields, *pointers, norms.epsilon, scale, *sizes, layer, window or 0
        )

        self.storing = None if sizes[1] * sizes[3] % GROUP else self.without_heads(qkv)

    def without_heads(self, qkv: Matrix) -> AttentionFields:
        fields = AttentionFields.from_buffer_copy(self.fields)
        fields.qkv, fields.heads = qkv.from_output(fields.heads * fields.head_dim), 0
        return fields

    def __call__(self, hidden: Tensor, tile: KernelTile) -> None:
        """hidden float32 [rows, hidden_size], in place."""
        self.library.attention_half(self.fields, tile.fields, hidden)

    def store(self, hidden: Tensor, tile: KernelTile) -> bool:
        """Store the keys and values of these rows and compute nothing else. Return False, with nothing done, if queries
        and keys share a panel."""
        if self.storing is not None:
            self.library.attention_half(self.storing, tile.fields, hidden)
        return self.storing is not None


class MlpHalf:
    """`result += after(down(activation(gate) * up))` of `before(x)`; `gate_up` is as `matrix.alternate` makes it.

    It is divided, as AttentionHalf may be, if `down` has more inputs than there are gates."""

    def __init__(self, library: KernelLibrary, gate_up: Matrix, down: Matrix, norms: Norms, gelu: bool) -> None:
        self.library = library
        self.held = (gate_up, down, norms)
        self.fields = MlpFields(
            gate_up.fields, down.fields, address(norms.before), address(norms.after), norms.epsilon, gate_up.inputs,
            gate_up.outputs // 2, GELU_TANH if gelu else SILU,
        )  # fmt: skip

    def __call__(self, x: Tensor, result: Tensor) -> None:
        """Add the MLP of x to result, both float32 [rows, hidden_size]; they may be the same tensor."""
        self.library.mlp_half(self.fields, x, result)


class Layers:
    """Several layers in one call, with no Python in between."""

    def __init__(self, library: KernelLibrary, halves: Sequence[tuple[AttentionHalf, MlpHalf]]) -> None:
        self.library, self.held = library, tuple(halves)
        pairs = [LayerFields(attention.fields, mlp.fields) for attention, mlp in halves]
        self.fields = (LayerFields * len(pairs))(*pairs)

    def __call__(self, hidden: Tensor, tile: KernelTile) -> None:
        """hidden float32 [rows, hidden_size], in place."""
        self.library.layers(self.fields, tile.fields, hidden)


def address(values: Tensor | None) -> int | None:
    return None if values is None else values.data_ptr()
