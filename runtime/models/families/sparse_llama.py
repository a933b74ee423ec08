# SPDX-License-Identifier: Apache-2.0
"""Llama with experts in the place of most or all MLPs, as in Mixtral (Jiang et al., 2024)."""

from pontil.runtime.models.families.llama import Llama
from pontil.runtime.models.layers.blocks import FeedForward
from pontil.runtime.models.layers.experts import Experts
from pontil.runtime.models.weights import Weights


class SparseLlama(Llama):
    """`config.experts` gives the number of experts, and the layers that stay dense. Models differ in their attention,
    and in the choice of experts."""

    def feed_forward(self, index: int, weights: Weights) -> FeedForward:
        if self.config.experts is None or not self.config.is_sparse(index):
            return super().feed_forward(index, weights)
        return Experts(self.config.experts, self.config.hidden_size, f"model.layers.{index}.mlp.", weights)
