# SPDX-License-Identifier: Apache-2.0
"""A Mamba 2 mixer (Dao and Gu, 2024, arXiv 2405.21060) in the place of a layer's attention, by torch."""

import torch
from torch import Tensor

from pontil.gpu_ops.elementwise import apply
from pontil.gpu_ops.kernels.layer import AttendingHalf, Norms, Rotation
from pontil.gpu_ops.kernels.linear import Product
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.kv.states import HybridAttention
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.recurrence import causal_convolution, state_space
from pontil.runtime.models.config import ModelConfig, RecurrentConfig
from pontil.runtime.models.layers.norm import Norm
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.models.partition import whole
from pontil.runtime.models.weights import Weights


class Mamba2:
    """Projection in, a short convolution, the state space with a direct way beside it, gates, a norm over the heads of
    a group together, projection out."""

    def __init__(self, config: ModelConfig, sizes: RecurrentConfig, index: int, weights: Weights) -> None:
        hidden, prefix = config.hidden_size, f"model.layers.{index}.mamba."
        self.dtype, self.sizes, self.inner = weights.dtype, sizes, sizes.value_heads * sizes.value_dim
        self.layer = LayerAttention(config.place(index), 1.0)
        self.inward = weights.linear(hidden, (prefix + "in_proj", self.inner + sizes.channels + sizes.value_heads))
        channels = weights.take(prefix + "conv1d.weight", sizes.channels, 1, sizes.width, dtype=torch.float32)
        self.channels = channels[:, 0].contiguous()
        self.channel_bias = weights.take(prefix + "conv1d.bias", sizes.channels, dtype=torch.float32)
        self.bias, rate, self.direct = (
            weights.take(prefix + name, sizes.value_heads, dtype=torch.float32) for name in ("dt_bias", "A_log", "D")
        )
        self.rate = -rate.exp()
        self.norm = Norm(weights, prefix + "norm", self.inner, config.rms_norm_eps)
        self.o = weights.joining(self.inner, prefix + "out_proj", hidden, whole)

    @property
    def linears(self) -> list[Product]:
        return [self.inward, self.o.product]

    def half(self, norms: Norms, rotation: Rotation) -> AttendingHalf:
        raise AssertionError("the kernels compute no Mamba")

    def __call__(self, x: Tensor, angles: Angles, attend: PagedAttention) -> Tensor:
        """Mix x [rows, hidden_size] in the weights' dtype with what was before; the result has the same shape."""
        assert isinstance(attend, HybridAttention)
        sizes, rows, heads = self.sizes, len(x), self.sizes.value_heads
        gates, mixed, time = self.inward(x).float().split((self.inner, sizes.channels, heads), dim=1)
        time = apply(torch.nn.functional.softplus, time + self.bias)
        decay = apply(torch.exp, self.rate * time)
        made = gates.new_zeros(rows, heads, sizes.value_dim)
        matrices = heads * sizes.key_dim * sizes.value_dim
        for own, state in attend.states.pieces(self.layer.layer, sizes.layer_numbers):
            matrix = state[:matrices].view(heads, sizes.key_dim, sizes.value_dim)
            recent = state[matrices:].view(sizes.width - 1, sizes.channels)
            values, keys, queries = self.heads_of(
                causal_convolution(recent, mixed[own], self.channels, self.channel_bias)
            )
            read = state_space(queries, keys, values * time[own].unsqueeze(-1), decay[own], matrix)
            made[own] = read + values * self.direct.unsqueeze(-1)
        gated = made.view(rows, -1) * apply(torch.nn.functional.silu, gates)
        groups = gated.view(rows, sizes.key_heads, -1)
        scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + self.norm.eps)
        return self.o(((groups * scale).view(rows, -1) * self.norm.weight).to(self.dtype))

    def heads_of(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The values of the heads, and the keys and queries of the groups."""
        sizes, rows = self.sizes, len(convolved)
        keys = sizes.key_heads * sizes.key_dim
        v, k, q = convolved.split((self.inner, keys, keys), dim=1)
        k, q = (part.reshape(rows, sizes.key_heads, sizes.key_dim) for part in (k, q))
        return v.reshape(rows, sizes.value_heads, sizes.value_dim), k, q
