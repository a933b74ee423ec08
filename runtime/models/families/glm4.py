# SPDX-License-Identifier: Apache-2.0
"""GLM-4 (GLM Team, 2024) and GLM-4.5 (2025): heads of which only a part is rotated."""

from pontil.runtime.models.families.llama import Llama
from pontil.runtime.models.families.sparse_llama import SparseLlama
from pontil.runtime.models.layers.attention import Attention, HeadNorms
from pontil.runtime.models.layers.blocks import Block, SelfAttention
from pontil.runtime.models.weights import Weights


class Glm4(Llama):
    """Each half of a layer stands between two norms."""

    def block(self, index: int, weights: Weights) -> Block:
        prefix = f"model.layers.{index}."
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        norms = [self.make_norm(f"{prefix}{name}_layernorm", weights) for name in names]
        attention, feed_forward = self.attention(index, weights), self.feed_forward(index, weights)
        return Block(self.dtype, attention, feed_forward, before=(norms[0], norms[2]), after=(norms[1], norms[3]))


class Glm4Moe(SparseLlama):
    """GLM-4.5: experts, and in some models norms of queries and keys."""

    def attention(self, index: int, weights: Weights) -> SelfAttention:
        norms = HeadNorms(self.config, index, weights) if self.config.head_norms else None
        return Attention(self.config, index, weights, norms)
