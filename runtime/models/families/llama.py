# SPDX-License-Identifier: Apache-2.0
"""Llama (Touvron et al., 2023): pre-norm blocks of grouped-query attention with rotary positions and a gated MLP."""

from pontil.runtime.models.layers.attention import Attention
from pontil.runtime.models.layers.blocks import Block, FeedForward, SelfAttention
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.layers.mlp import GatedMlp
from pontil.runtime.models.weights import Weights


class Llama(Decoder):
    """Llama 2 and 3; its subclasses differ in their attention or in their feed-forward part."""

    def block(self, index: int, weights: Weights) -> Block:
        prefix = f"model.layers.{index}."
        before = [self.make_norm(prefix + name, weights) for name in ("input_layernorm", "post_attention_layernorm")]
        attention, feed_forward = self.attention(index, weights), self.feed_forward(index, weights)
        return Block(self.dtype, attention, feed_forward, before=(before[0], before[1]))

    def attention(self, index: int, weights: Weights) -> SelfAttention:
        return Attention(self.config, index, weights)

    def feed_forward(self, index: int, weights: Weights) -> FeedForward:
        prefix = f"model.layers.{index}.mlp."
        return GatedMlp(weights, prefix, self.config.hidden_size, self.config.intermediate_size)
