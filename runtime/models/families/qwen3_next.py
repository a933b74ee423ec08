# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Next and Qwen3.5 (Qwen Team, 2025): gated delta nets, and attention whose heads have gates in every fourth
layer."""

from pontil.runtime.models.families.sparse_llama import SparseLlama
from pontil.runtime.models.layers.attention import Attention, HeadNorms
from pontil.runtime.models.layers.blocks import SelfAttention
from pontil.runtime.models.layers.gated_delta import GatedDeltaNet
from pontil.runtime.models.layers.norm import Norm
from pontil.runtime.models.weights import Weights


class Qwen3Next(SparseLlama):
    """Norm weights are stored minus one, but that of a delta net."""

    def make_norm(self, name: str, weights: Weights) -> Norm:
        return Norm(weights, name, self.config.hidden_size, self.config.rms_norm_eps, offset=1.0)

    def attention(self, index: int, weights: Weights) -> SelfAttention:
        if self.config.recurrent is not None and self.config.is_recurrent(index):
            return GatedDeltaNet(self.config, self.config.recurrent, index, weights)
        return Attention(self.config, index, weights, HeadNorms(self.config, index, weights, offset=1.0), gated=True)
