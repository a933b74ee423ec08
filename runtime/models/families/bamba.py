# SPDX-License-Identifier: Apache-2.0
"""Bamba (IBM and others, 2024): Mamba 2, and attention with heads that are rotated in part in some layers."""

from pontil.runtime.models.families.llama import Llama
from pontil.runtime.models.layers.blocks import SelfAttention
from pontil.runtime.models.layers.mamba2 import Mamba2
from pontil.runtime.models.weights import Weights


class Bamba(Llama):
    """Layers with a state have a mixer of Mamba 2, and no keys and values."""

    def attention(self, index: int, weights: Weights) -> SelfAttention:
        if self.config.recurrent is not None and self.config.is_recurrent(index):
            return Mamba2(self.config, self.config.recurrent, index, weights)
        return super().attention(index, weights)
