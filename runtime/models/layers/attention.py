# SPDX-License-Identifier: Apache-2.0
"""Grouped-query self-attention (Ainslie et al., 2023) of one layer."""

from dataclasses import replace

import torch
from torch import Tensor

from pontil.gpu_ops.elementwise import apply
from pontil.gpu_ops.kernels.layer import AttentionHalf, HeadShape, Norms, Rotation
from pontil.gpu_ops.kernels.linear import Product, matrix_of
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.rotary import HeadNormWeights, HeadTurn
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.layers.norm import Norm
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.models.partition import Partition, by_heads
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
    numbers of this rank's query heads, key heads and value heads. What a head that is `gated` has attended to is
    multiplied by the sigmoids of as many numbers of its query's projection."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        weights: Weights,
        norms: HeadNorms | None = None,
        sinks: bool = False,
        gated: bool = False,
    ) -> None:
        hidden, dim = config.hidden_size, config.head_dim
        prefix = f"model.layers.{index}.self_attn."
        q_size, kv_size = config.num_heads * dim, config.num_kv_heads * dim
        names = (prefix + "q_proj", prefix + "k_proj", prefix + "v_proj")
        if gated:
            parts = tuple(zip(names, (2 * q_size, kv_size, kv_size), strict=True))
            self.qkv = weights.ordered(hidden, parts, gated_order(config, weights.partition))
        else:
            parts = tuple(zip(names, (q_size, kv_size, kv_size), strict=True))
            self.qkv = weights.linear(hidden, *parts, bias=config.qkv_bias, cut=by_heads(dim))
        self.o = weights.joining(q_size, prefix + "o_proj", hidden, by_heads(dim), config.output_bias)
        scores: Tensor | None = None
        if sinks:
            whole = weights.take(prefix + "sinks", config.num_heads, dtype=torch.float32)
            scores = weights.part(whole, by_heads(1))
        self.layer = LayerAttention(config.place(index), config.query_scale, config.window(index), scores)
        self.norms, self.kernels = norms, weights.kernels
        queries, keys = (len(weights.partition.heads(heads, 1)) for heads in (config.num_heads, config.num_kv_heads))
        self.head_dim, self.heads, self.interleaved = dim, (queries, keys, keys), config.interleaved
        self.gates = queries if gated else 0

    @property
    def linears(self) -> list[Product]:
        return [self.qkv, self.o.product]

    def half(self, norms: Norms, rotation: Rotation) -> AttentionHalf:
        assert self.kernels is not None
        if self.norms is not None:
            norms = replace(norms, query=self.norms.query.weight, key=self.norms.key.weight)
        shape = HeadShape(*self.heads[:2], self.head_dim, self.gates > 0)
        matrices = matrix_of(self.qkv), matrix_of(self.o.product)
        return AttentionHalf(self.kernels, *matrices, norms, rotation, shape, self.layer)

    def __call__(self, x: Tensor, angles: Angles, attend: PagedAttention) -> Tensor:
        """Attend for x [rows, hidden_size] in the weights' dtype; the result has the same shape."""
        q, k, v, gates = self.qkv(x).view(len(x), -1, self.head_dim).split((*self.heads, self.gates), dim=1)
        turn = HeadTurn(*angles, self.interleaved, None if self.norms is None else self.norms.weights)
        attended = attend(self.layer, q, k, v, turn)
        if self.gates:
            attended = attended * apply(torch.sigmoid, gates)
        return self.o(attended.reshape(len(x), -1))


def gated_order(config: ModelConfig, partition: Partition) -> list[int]:
    """The outputs of the stacked projections that are a rank's: its queries, which stand beside their gates, its keys
    and values, then the gates."""
    dim, behind = config.head_dim, 2 * config.num_heads * config.head_dim
    heads, own = partition.heads(config.num_heads, 1), partition.heads(config.num_kv_heads, dim)
    queries, gates = ([(2 * head + part) * dim + at for head in heads for at in range(dim)] for part in range(2))
    keys, values = ([behind + part * config.num_kv_heads * dim + at for at in own] for part in range(2))
    return [*queries, *keys, *values, *gates]
