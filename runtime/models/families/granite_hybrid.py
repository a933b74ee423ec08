# SPDX-License-Identifier: Apache-2.0
"""Granite 4 (IBM, 2025): Mamba 2, and attention in some layers, mostly without positions; experts with one that all
rows go through, or that one alone."""

from torch import Tensor

from pontil.runtime.models.families.bamba import Bamba
from pontil.runtime.models.families.sparse_llama import SparseLlama
from pontil.runtime.models.layers.norm import Norm
from pontil.runtime.models.weights import Weights


class GraniteHybrid(Bamba, SparseLlama):
    """The residual stream is that of the reference divided by the factor of what each half of a layer adds: then this
    is added as it is, and norms change nothing else if their epsilons are divided by the square of it. The divisor of
    the logits is in the last norm's weight."""

    def embed(self, token_ids: Tensor) -> Tensor:
        factors = self.config.factors
        return super().embed(token_ids) * (factors.embedding / factors.residual)

    def make_norm(self, name: str, weights: Weights) -> Norm:
        config, factors = self.config, self.config.factors
        norm = Norm(weights, name, config.hidden_size, config.rms_norm_eps / factors.residual**2)
        if name == "model.norm":
            norm.weight /= factors.logits
        return norm
