# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 (Gemma Team, 2025), its text model: five layers with a sliding window to one with full attention, each half
of a layer between two norms, norms over queries and keys, gelu in the MLP, and scaled embeddings."""

import torch
from torch import Tensor

from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.layers.attention import Attention, HeadNorms
from pontil.runtime.models.layers.blocks import Block
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.layers.mlp import GELU, GatedMlp
from pontil.runtime.models.layers.norm import Norm
from pontil.runtime.models.weights import Weights


class Gemma3(Decoder):
    """Layers with a window have a rotary base of their own."""

    norm_offset = 1.0

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        # The reference implementation rounds this factor to the type of the weights.
        self.embedding_scale = float(torch.tensor(config.hidden_size**0.5, dtype=self.dtype))

    def block(self, index: int, weights: Weights) -> Block:
        config, prefix = self.config, f"model.layers.{index}."
        before = self.pair(prefix + "input_layernorm", prefix + "pre_feedforward_layernorm", weights)
        after = self.pair(prefix + "post_attention_layernorm", prefix + "post_feedforward_layernorm", weights)
        attention = Attention(config, index, weights, HeadNorms(config, index, weights, self.norm_offset))
        mlp = GatedMlp(weights, prefix + "mlp.", config.hidden_size, config.intermediate_size, GELU)
        return Block(self.dtype, attention, mlp, before=before, after=after)

    def pair(self, attention: str, feed_forward: str, weights: Weights) -> tuple[Norm, Norm]:
        return self.make_norm(attention, weights), self.make_norm(feed_forward, weights)

    def embed(self, token_ids: Tensor) -> Tensor:
        return super().embed(token_ids) * self.embedding_scale
