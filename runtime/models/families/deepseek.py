# SPDX-License-Identifier: Apache-2.0
"""DeepSeek V2 and V3 (DeepSeek-AI, 2024): latent attention, and experts in all but the first layers."""

from pontil.runtime.models.families.sparse_llama import SparseLlama
from pontil.runtime.models.layers.blocks import SelfAttention
from pontil.runtime.models.layers.latent_attention import LatentAttention
from pontil.runtime.models.weights import Weights


class DeepSeek(SparseLlama):
    """V2 and V3 differ in how experts are chosen, which `config.experts` says."""

    def attention(self, index: int, weights: Weights) -> SelfAttention:
        assert self.config.latent is not None
        return LatentAttention(self.config, self.config.latent, index, weights)
