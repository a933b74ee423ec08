# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (DeepSeek-AI, 2024, arXiv 2405.04434) of one layer."""

from dataclasses import replace

from torch import Tensor, cat

from pontil.gpu_ops.kernels.latent import HeadMatrices, LatentHalf, LatentMatrices
from pontil.gpu_ops.kernels.layer import Norms, Rotation
from pontil.gpu_ops.kernels.linear import Product, matrix_of
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.products.head_linear import HeadLinear
from pontil.gpu_ops.rotary import apply_rotary
from pontil.runtime.models.config import LatentConfig, ModelConfig
from pontil.runtime.models.layers.norm import Norm
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.models.partition import by_heads
from pontil.runtime.models.weights import HeadProduct, Weights

# The norms of the latents have an epsilon of their own, which no configuration states.
LATENT_EPS = 1e-6


class LatentAttention:
    """Attention to one stored vector for each position: the normed latent and the rotated part of its keys.

    A head's key is a product of the latent, and so is its value. Both products are absorbed (the paper's section
    2.1.2): the first is applied to the query instead, the second to the weighted sum of latents. So the heads share one
    KV head, whose values are the first numbers of its keys, in prompts and in answers alike.

    Ranks divide the heads. Each of them has the latent.
    """

    def __init__(self, config: ModelConfig, latent: LatentConfig, index: int, weights: Weights) -> None:
        hidden, heads, prefix = config.hidden_size, config.num_heads, f"model.layers.{index}.self_attn."
        self.latent, self.dtype, self.kernels = latent, weights.dtype, weights.kernels
        own_heads = by_heads(latent.query_dim)
        self.down: Product | None = None
        if latent.query_rank is not None:
            self.down = weights.linear(hidden, (prefix + "q_a_proj", latent.query_rank))
            self.query_norm = Norm(weights, prefix + "q_a_layernorm", latent.query_rank, LATENT_EPS)
        name = "q_proj" if latent.query_rank is None else "q_b_proj"
        self.query = weights.linear(
            latent.query_rank or hidden, (prefix + name, heads * latent.query_dim), cut=own_heads
        )
        self.compress = weights.linear(hidden, (prefix + "kv_a_proj_with_mqa", latent.stored_dim))
        self.norm = Norm(weights, prefix + "kv_a_layernorm", latent.rank, LATENT_EPS)
        self.absorb, self.expand = self.weights_of_heads(heads, prefix + "kv_b_proj", weights)
        self.o = weights.joining(heads * latent.value_dim, prefix + "o_proj", hidden, by_heads(latent.value_dim))
        self.layer = LayerAttention(index, config.query_scale, config.window(index), value_dim=latent.rank)
        self.interleaved = config.interleaved

    def weights_of_heads(self, heads: int, name: str, weights: Weights) -> tuple[HeadProduct, HeadProduct]:
        """The products that make a query fit the latent, and a value from it."""
        one, sizes = self.latent.key_dim + self.latent.value_dim, (self.latent.key_dim, self.latent.value_dim)

        def parts() -> tuple[Tensor, Tensor]:
            weight = weights.dense(name, heads * one, self.latent.rank, by_heads(one))
            keys, values = weight.view(-1, one, self.latent.rank).split(sizes, dim=1)
            return keys, values.transpose(1, 2)

        return weights.two_of_heads(name, parts)

    @property
    def linears(self) -> list[Product]:
        return [*([] if self.down is None else [self.down]), self.query, self.compress, self.o.product]

    def half(self, norms: Norms, rotation: Rotation) -> LatentHalf:
        assert self.kernels is not None
        assert isinstance(self.absorb, HeadMatrices) and isinstance(self.expand, HeadMatrices)
        down = None if self.down is None else matrix_of(self.down)
        matrices = LatentMatrices(
            matrix_of(self.compress), down, matrix_of(self.query), self.absorb, self.expand, matrix_of(self.o.product)
        )
        query_norm = None if self.down is None else self.query_norm.weight
        norms = replace(norms, query=query_norm, key=self.norm.weight)
        return LatentHalf(self.kernels, matrices, norms, rotation, LATENT_EPS, self.layer)

    def __call__(self, x: Tensor, angles: Angles, attend: PagedAttention) -> Tensor:
        """Attend for x [rows, hidden_size] in the weights' dtype; the result has the same shape."""
        latent = self.latent
        assert isinstance(self.absorb, HeadLinear) and isinstance(self.expand, HeadLinear)
        below = x if self.down is None else self.query_norm(self.down(x).float(), self.dtype)
        q = self.query(below).view(len(x), -1, latent.query_dim)
        straight, turned = q.split((latent.key_dim, latent.rotary_dim), dim=-1)
        q = cat((self.absorb(straight), apply_rotary(turned, *angles, self.interleaved)), dim=-1)
        made, key = self.compress(x).split((latent.rank, latent.rotary_dim), dim=-1)
        key = apply_rotary(key.unsqueeze(1), *angles, self.interleaved)
        k = cat((self.norm(made.float(), self.dtype).unsqueeze(1), key), dim=-1)
        attended = attend(self.layer, q, k, None)
        values = self.expand(attended)
        return self.o(values.reshape(len(x), -1))
