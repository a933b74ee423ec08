# SPDX-License-Identifier: Apache-2.0
"""A gated delta net (Yang et al., 2024, arXiv 2412.06464) in the place of a layer's attention."""

from dataclasses import replace

import torch
from torch import Tensor

from pontil.gpu_ops.elementwise import apply
from pontil.gpu_ops.kernels.layer import Norms, Rotation
from pontil.gpu_ops.kernels.linear import Product, matrix_of
from pontil.gpu_ops.kernels.recurrent import RecurrentHalf, RecurrentShape, RecurrentWeights
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.kv.device_states import DeviceStates
from pontil.gpu_ops.kv.states import HybridAttention, TileStates
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.recurrent import RecurrentSizes
from pontil.gpu_ops.recurrence import causal_convolution, gated_delta, unit
from pontil.runtime.models.config import ModelConfig, RecurrentConfig
from pontil.runtime.models.layers.norm import Norm
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.models.partition import by_heads
from pontil.runtime.models.weights import Weights

# Numbers of a position, in the order in which the product in makes them: queries, keys and values, which go through the
# convolution, then the gates of the output, the strengths and the decays of the value heads.
Parts = tuple[list[int], list[int], list[int], list[int], list[int], list[int]]


class GatedDeltaNet:
    """Projections in, a short convolution, the gated delta rule, a norm of each head, gates, projection out.

    Ranks divide the key heads, each with the value heads that share it.
    """

    def __init__(self, config: ModelConfig, sizes: RecurrentConfig, index: int, weights: Weights) -> None:
        hidden, prefix = config.hidden_size, f"model.layers.{index}.linear_attn."
        self.dtype, self.sizes, self.kernels = weights.dtype, sizes.divided(weights.partition.size), weights.kernels
        self.layer, self.own = LayerAttention(config.place(index), 1.0), RecurrentSizes(*self.sizes.sizes)
        values = sizes.value_heads * sizes.value_dim
        names = {"qkvz": sizes.channels + values, "ba": 2 * sizes.value_heads}
        if sizes.kind == "gated_delta":
            names = {"qkv": sizes.channels, "z": values, "b": sizes.value_heads, "a": sizes.value_heads}
        heads = weights.partition.columns(sizes.key_heads)
        order = [number for part in parts_of(sizes, heads) for number in part]
        stacked = tuple((f"{prefix}in_proj_{name}", size) for name, size in names.items())
        self.inward = weights.ordered(hidden, stacked, order)
        value_heads = by_heads(sizes.value_heads // sizes.key_heads)
        channels = weights.take(prefix + "conv1d.weight", sizes.channels, 1, sizes.width, dtype=torch.float32)
        separate = parts_of(replace(sizes, kind="gated_delta"), heads)
        mixed = [number for part in separate[:3] for number in part]
        self.channels = weights.chosen(channels[:, 0], mixed)
        bias, rate = (
            weights.part(weights.take(prefix + name, sizes.value_heads, dtype=torch.float32), value_heads)
            for name in ("dt_bias", "A_log")
        )
        self.bias, self.rate = bias, -rate.exp()
        self.norm = Norm(weights, prefix + "norm", sizes.value_dim, config.rms_norm_eps)
        self.o = weights.joining(values, prefix + "out_proj", hidden, by_heads(values // sizes.key_heads))

    @property
    def linears(self) -> list[Product]:
        return [self.inward, self.o.product]

    def half(self, norms: Norms, rotation: Rotation) -> RecurrentHalf:
        assert self.kernels is not None
        weights = RecurrentWeights(self.norm.weight, self.channels, self.bias, self.rate)
        products = matrix_of(self.inward), matrix_of(self.o.product)
        shape = RecurrentShape(*self.sizes.sizes, self.layer.layer, self.norm.eps)
        return RecurrentHalf(self.kernels, products, weights, norms, shape)

    def __call__(self, x: Tensor, angles: Angles, attend: PagedAttention) -> Tensor:
        """Mix x [rows, hidden_size] in the weights' dtype with what was before; the result has the same shape."""
        assert isinstance(attend, HybridAttention)
        sizes, rows = self.sizes, len(x)
        values, heads = sizes.value_heads * sizes.value_dim, sizes.value_heads
        mixed, gates, strength, time = self.inward(x).float().split((sizes.channels, values, heads, heads), dim=1)
        strength = apply(torch.sigmoid, strength)
        decay = apply(torch.exp, self.rate * apply(torch.nn.functional.softplus, time + self.bias))
        if isinstance(attend.states, DeviceStates):
            made = attend.states.gated_delta(self.layer.layer, self.own, mixed, self.channels, decay, strength)
        else:
            made = self.by_pieces(attend.states, mixed, decay, strength)
        normed = self.norm(made) * apply(torch.nn.functional.silu, gates.reshape(made.shape))
        return self.o(normed.to(self.dtype).reshape(rows, -1))

    def by_pieces(self, states: TileStates, mixed: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
        """The delta rule behind the convolution, float32 [rows, value_heads, value_dim], by torch's operations."""
        sizes, heads = self.sizes, self.sizes.value_heads
        made = mixed.new_zeros(len(mixed), heads, sizes.value_dim)
        matrices = heads * sizes.key_dim * sizes.value_dim
        for own, state in states.pieces(self.layer.layer, sizes.layer_numbers):
            matrix = state[:matrices].view(heads, sizes.key_dim, sizes.value_dim)
            recent = state[matrices:].view(sizes.width - 1, sizes.channels)
            queries, keys, some = self.heads_of(causal_convolution(recent, mixed[own], self.channels))
            made[own] = gated_delta(queries, keys, some, decay[own], strength[own], matrix)
        return made

    def heads_of(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values of the heads. Queries and keys have one length each."""
        sizes = self.sizes
        keys = sizes.key_heads * sizes.key_dim
        q, k, v = convolved.split((keys, keys, sizes.value_heads * sizes.value_dim), dim=1)
        q, k = (part.reshape(len(part), sizes.key_heads, sizes.key_dim) for part in (q, k))
        return unit(q) * sizes.key_dim**-0.5, unit(k), v.reshape(len(v), sizes.value_heads, sizes.value_dim)


def parts_of(sizes: RecurrentConfig, heads: range) -> Parts:
    """The outputs of the stacked projections that belong to these key heads: queries, keys, values, gates, strengths,
    decays."""
    shared = sizes.value_heads // sizes.key_heads
    keys, values = sizes.key_dim, shared * sizes.value_dim
    if sizes.kind == "gated_delta":
        starts, at = [], 0
        for size in (keys, keys, values, values, shared, shared):
            starts.append(at)
            at += sizes.key_heads * size
        strides = (keys, keys, values, values, shared, shared)
    else:
        # Side by side for each key head: query, key, values and gates; then, in the other projection, the last two.
        one, other = 2 * keys + 2 * values, 2 * shared
        behind = sizes.key_heads * one
        starts = [0, keys, 2 * keys, 2 * keys + values, behind, behind + shared]
        strides = (one, one, one, one, other, other)
    counts = (keys, keys, values, values, shared, shared)
    q, k, v, z, b, a = (
        [start + head * stride + number for head in heads for number in range(count)]
        for start, stride, count in zip(starts, strides, counts, strict=True)
    )
    return q, k, v, z, b, a
