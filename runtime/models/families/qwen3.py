# SPDX-License-Identifier: Apache-2.0
"""Qwen3 (Yang et al., 2025): Llama with a norm over each query and each key before rotation."""

from pontil.runtime.models.families.llama import Llama
from pontil.runtime.models.layers.attention import Attention, HeadNorms
from pontil.runtime.models.weights import Weights


class Qwen3(Llama):
    """Heads have a size of their own: heads times head_dim need not be hidden_size."""

    def attention(self, index: int, weights: Weights) -> Attention:
        return Attention(self.config, index, weights, HeadNorms(self.config, index, weights))
