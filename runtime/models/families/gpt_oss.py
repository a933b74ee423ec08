# SPDX-License-Identifier: Apache-2.0
"""GPT-OSS (OpenAI, 2025): every other layer has a sliding window, heads have sinks, and experts have biases and a
clamped activation."""

from pontil.runtime.models.families.sparse_llama import SparseLlama
from pontil.runtime.models.layers.attention import Attention
from pontil.runtime.models.layers.blocks import SelfAttention
from pontil.runtime.models.weights import Weights


class GptOss(SparseLlama):
    """`config.experts` has what its experts need."""

    def attention(self, index: int, weights: Weights) -> SelfAttention:
        return Attention(self.config, index, weights, sinks=True)
