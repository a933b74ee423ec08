# SPDX-License-Identifier: Apache-2.0
"""Grouped-query self-attention (Ainslie et al., 2023) of one layer."""

from dataclasses import replace

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.layer import AttentionHalf, HeadShape, Norms, Rotation
from pontil.gpu_ops.kernels.linear import Product, matrix_of
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.rotary import HeadNormWeights, HeadTurn
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.layers.norm import Norm
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.models.partition import by_heads
from pontil.runtime.models.weights import Weights


class HeadNorms:
    """Norms of each query and each key over its own dimensions, before rotation."""

    def __init__(self, config: ModelConfig, index: int, weights: Weights, offset: float = 0.0) -> None:
        prefix = f"model.layers.{index}.self_attn."
        self.query = Norm(weights, prefix + "q_norm", config.head_dim, config.rms_norm_eps, offset)
        self.key = Norm(weights, prefix + "k_norm", config.head_dim, config.rms_norm_eps, offset)

    @property
    def weights(self) -> HeadNormWeights:
        return self.query.weight, self.key.weight, self.query.eps


class Attention:
    """Projections in, head norms where the architecture has them, rotation, attention, projection out. `heads` are the
    numbers of this rank's query heads, key heads and value heads."""

    def __init__(
        self, config: ModelConfig, index: int, weights: Weights, norms: HeadNorms | None = None, sinks: bool = False
    ) -> None:
        hidden, dim = config.hidden_size, config.head_dim
        prefix = f"model.layers.{index}.self_attn."
        q_size, kv_size = config.num_heads * dim, config.num_kv_heads * dim
        parts = ((prefix + "q_proj", q_size), (prefix + "k_proj", kv_size), (prefix + "v_proj", kv_size))
        self.qkv = weights.linear(hidden, *parts, bias=config.qkv_bias, cut=by_heads(dim))
        self.o = weights.joining(q_size, prefix + "o_proj", hidden, by_heads(dim), config.output_bias)
        scores: Tensor | None = None
        if sinks:
            whole = weights.take(prefix + "sinks", config.num_heads, dtype=torch.float32)
            scores = weights.part(whole, by_heads(1))
        self.layer = LayerAttention(index, config.query_scale, config.window(index), scores)
        self.norms, self.kernels = norms, weights.kernels
        queries, keys = (len(weights.partition.heads(heads, 1)) for heads in (config.num_heads, config.num_kv_heads))
        self.head_dim, self.heads, self.interleaved = dim, (queries, keys, keys), config.interleaved

    @property
    def linears(self) -> list[Product]:
        return [self.qkv, self.o.product]

    def half(self, norms: Norms, rotation: Rotation) -> AttentionHalf:
        assert self.kernels is not None
        if self.norms is not None:
            norms = replace(norms, query=self.norms.query.weight, key=self.norms.key.weight)
        shape = HeadShape(*self.heads[:2], self.head_dim)
        matrices = matrix_of(self.qkv), matrix_of(self.o.product)
        return AttentionHalf(self.kernels, *matrices, norms, rotation, shape, self.layer)

    def __call__(self, x: Tensor, angles: Angles, attend: PagedAttention) -> Tensor:
        """Attend for x [rows, hidden_size] in the weights' dtype; the result has the same shape."""
        q, k, v = self.qkv(x).view(len(x), -1, self.head_dim).split(self.heads, dim=1)
        turn = HeadTurn(*angles, self.interleaved, None if self.norms is None else self.norms.weights)
        attended = attend(self.layer, q, k, v, turn)
        return self.o(attended.reshape(len(x), -1))
