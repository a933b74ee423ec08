# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Next and Qwen3.5 (Qwen Team, 2025): gated delta nets, and attention whose heads have gates in every fourth
layer."""

from pontil.runtime.models.families.sparse_llama import SparseLlama
from pontil.runtime.models.layers.attention import Attention, HeadNorms
from pontil.runtime.models.layers.blocks import SelfAttention
from pontil.runtime.models.layers.gated_delta import GatedDeltaNet
from pontil.runtime.models.weights import Weights


class Qwen3Next(SparseLlama):
    """The norm weights of delta nets have no offset. An MTP layer is one with attention, of a configuration without
    recurrent layers."""

    norm_offset = 1.0

    def attention(self, index: int, weights: Weights) -> SelfAttention:
        if self.config.recurrent is not None and self.config.is_recurrent(index):
            return GatedDeltaNet(self.config, self.config.recurrent, index, weights)
        norms = HeadNorms(self.config, index, weights, self.norm_offset)
        return Attention(self.config, index, weights, norms, gated=True)
