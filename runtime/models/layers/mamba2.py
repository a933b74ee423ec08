# SPDX-License-Identifier: Apache-2.0
"""A Mamba 2 mixer (Dao and Gu, 2024, arXiv 2405.21060) in the place of a layer's attention."""

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
from pontil.gpu_ops.recurrence import causal_convolution, state_space
from pontil.runtime.models.config import ModelConfig, RecurrentConfig
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.models.partition import by_heads
from pontil.runtime.models.weights import Weights


class Mamba2:
    """Projection in, a short convolution, the state space with a direct way beside it, gates, a norm over the heads of
    a group together, projection out. Ranks divide the groups, which are key heads here."""

    def __init__(self, config: ModelConfig, sizes: RecurrentConfig, index: int, weights: Weights) -> None:
        hidden, prefix = config.hidden_size, f"model.layers.{index}.mamba."
        self.dtype, self.sizes, self.kernels = weights.dtype, sizes.divided(weights.partition.size), weights.kernels
        self.layer, self.eps = LayerAttention(config.place(index), 1.0), config.rms_norm_eps
        self.own = RecurrentSizes(*self.sizes.sizes)
        inner = sizes.value_heads * sizes.value_dim
        mixed, others = parts_of(sizes, weights.partition.columns(sizes.key_heads))
        outputs = inner + sizes.channels + sizes.value_heads
        self.inward = weights.ordered(hidden, ((prefix + "in_proj", outputs),), mixed + others)
        # Gates come before the channels of the convolution.
        own = [number - inner for number in mixed]
        channels = weights.take(prefix + "conv1d.weight", sizes.channels, 1, sizes.width, dtype=torch.float32)
        self.channels = weights.chosen(channels[:, 0], own)
        bias = weights.take(prefix + "conv1d.bias", sizes.channels, dtype=torch.float32)
        self.channel_bias = weights.chosen(bias, own)
        cut = by_heads(sizes.value_heads // sizes.key_heads)
        self.bias, rate, self.direct = (
            weights.part(weights.take(prefix + name, sizes.value_heads, dtype=torch.float32), cut)
            for name in ("dt_bias", "A_log", "D")
        )
        self.rate = -rate.exp()
        group = by_heads(inner // sizes.key_heads)
        self.norm = weights.part(weights.take(prefix + "norm.weight", inner, dtype=torch.float32), group)
        self.o = weights.joining(inner, prefix + "out_proj", hidden, group)

    @property
    def linears(self) -> list[Product]:
        return [self.inward, self.o.product]

    def half(self, norms: Norms, rotation: Rotation) -> RecurrentHalf:
        assert self.kernels is not None
        weights = RecurrentWeights(self.norm, self.channels, self.bias, self.rate, self.channel_bias, self.direct)
        products = matrix_of(self.inward), matrix_of(self.o.product)
        shape = RecurrentShape(*self.sizes.sizes, self.layer.layer, self.eps)
        return RecurrentHalf(self.kernels, products, weights, norms, shape)

    def __call__(self, x: Tensor, angles: Angles, attend: PagedAttention) -> Tensor:
        """Mix x [rows, hidden_size] in the weights' dtype with what was before; the result has the same shape."""
        assert isinstance(attend, HybridAttention)
        sizes, rows, heads = self.sizes, len(x), self.sizes.value_heads
        inner = heads * sizes.value_dim
        mixed, gates, time = self.inward(x).float().split((sizes.channels, inner, heads), dim=1)
        time = apply(torch.nn.functional.softplus, time + self.bias)
        decay = apply(torch.exp, self.rate * time)
        if isinstance(attend.states, DeviceStates):
            channels = self.channels, self.channel_bias
            read, values = attend.states.state_space(self.layer.layer, self.own, mixed, channels, decay, time)
            made = read + values * self.direct.unsqueeze(-1)
        else:
            made = self.by_pieces(attend.states, mixed, decay, time)
        gated = made.view(rows, -1) * apply(torch.nn.functional.silu, gates)
        groups = gated.view(rows, sizes.key_heads, -1)
        scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + self.eps)
        return self.o(((groups * scale).view(rows, -1) * self.norm).to(self.dtype))

    def by_pieces(self, states: TileStates, mixed: Tensor, decay: Tensor, time: Tensor) -> Tensor:
        """The state space behind the convolution, and the direct way, float32 [rows, value_heads, value_dim], by
        torch's operations."""
        sizes, heads = self.sizes, self.sizes.value_heads
        made = mixed.new_zeros(len(mixed), heads, sizes.value_dim)
        matrices = heads * sizes.key_dim * sizes.value_dim
        for own, state in states.pieces(self.layer.layer, sizes.layer_numbers):
            matrix = state[:matrices].view(heads, sizes.key_dim, sizes.value_dim)
            recent = state[matrices:].view(sizes.width - 1, sizes.channels)
            queries, keys, values = self.heads_of(
                causal_convolution(recent, mixed[own], self.channels, self.channel_bias)
            )
            read = state_space(queries, keys, values * time[own].unsqueeze(-1), decay[own], matrix)
            made[own] = read + values * self.direct.unsqueeze(-1)
        return made

    def heads_of(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The queries and keys of the groups, and the values of the heads."""
        sizes, rows = self.sizes, len(convolved)
        keys = sizes.key_heads * sizes.key_dim
        q, k, v = convolved.split((keys, keys, sizes.value_heads * sizes.value_dim), dim=1)
        q, k = (part.reshape(rows, sizes.key_heads, sizes.key_dim) for part in (q, k))
        return q, k, v.reshape(rows, sizes.value_heads, sizes.value_dim)


def parts_of(sizes: RecurrentConfig, groups: range) -> tuple[list[int], list[int]]:
    """The outputs of the projection in that belong to these groups: queries, keys and values, which go through the
    convolution, and then gates and times. The projection has gates, values, keys, queries and times."""
    shared = sizes.value_heads // sizes.key_heads
    values, inner = shared * sizes.value_dim, sizes.value_heads * sizes.value_dim
    keys = sizes.key_heads * sizes.key_dim
    q, k, v, z, a = (
        [start + number for number in range(groups.start * size, groups.stop * size)]
        for start, size in (
            (2 * inner + keys, sizes.key_dim),
            (2 * inner, sizes.key_dim),
            (inner, values),
            (0, values),
            (2 * inner + 2 * keys, shared),
        )
    )
    return q + k + v, z + a
