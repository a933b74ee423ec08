# SPDX-License-Identifier: Apache-2.0
"""A layer that guesses tokens from another model's hidden states: DeepSeek V3's MTP module (arXiv 2412.19437, section
2.2), that of Qwen3-Next and Qwen3.5, or an EAGLE head (Li et al., 2024, arXiv 2401.15077).

A row of position i has the target's final hidden state of position i and the token of position i + 1; its result gives
the token of position i + 2, and stands for the target's state where the next guess is made.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, cat

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.linear import Product
from pontil.gpu_ops.kernels.tile import KernelTile
from pontil.gpu_ops.kernels.weights.structures import TileFields
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.parameters.draws import RankedRows
from pontil.runtime.models.config import DraftLayerForm, ModelConfig
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.layers.norm import Norm, Unnormed
from pontil.runtime.models.media_rows import MediaRows
from pontil.runtime.models.weights import Weights


class StateJoin:
    """Makes the layer's rows: a product of token embeddings, first, and hidden states. Norm weights are stored less an
    `offset`."""

    def __init__(self, config: ModelConfig, weights: Weights, form: DraftLayerForm, offset: float) -> None:
        self.dtype, size = weights.dtype, config.hidden_size
        names = ("enorm", "hnorm") if form.normed else ()
        norms = [Norm(weights, name, size, config.rms_norm_eps, offset) for name in names] or [Unnormed(), Unnormed()]
        self.embedding_norm, self.state_norm = norms
        self.product = weights.linear(2 * size, ("eh_proj", size), bias=form.bias)

    def __call__(self, embedded: Tensor, states: Tensor) -> Tensor:
        """Join both, float32 [rows, hidden_size] each; the result has this shape and type too."""
        joined = cat((self.embedding_norm(embedded, self.dtype), self.state_norm(states, self.dtype)), dim=-1)
        return self.product(joined).float()


class DraftLayer:
    """A Model of one layer, whose inputs are joined rows, and whose results are before its last norm. Embedding and
    head are the target's own memory."""

    def __init__(self, layer: Decoder, join: StateJoin, feeds_normed: bool = False) -> None:
        self.layer, self.join, self.feeds_normed = layer, join, feeds_normed
        (self.block,) = layer.blocks
        self.config, self.dtype, self.device = layer.config, layer.dtype, layer.device
        self.kernels: KernelLibrary | None = layer.kernels
        self.communicator, self.adapters = layer.communicator, layer.adapters

    @property
    def linears(self) -> list[Product]:
        return [self.join.product, *self.layer.linears]

    @property
    def head(self) -> list[Product]:
        return self.layer.head

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.layer.embed(token_ids)

    def rows(self, token_ids: Tensor, states: Tensor) -> Tensor:
        """Return the inputs of rows with these tokens and hidden states, float32 [rows, hidden_size]."""
        return self.join(self.embed(token_ids), states)

    def fed(self, hidden: Tensor) -> Tensor:
        """Return the states, float32 [rows, hidden_size], that stand for the target's behind these results."""
        return self.layer.norm(hidden) if self.feeds_normed else hidden

    def forward(
        self,
        inputs: Tensor,
        positions: Tensor,
        attend: PagedAttention,
        states: HiddenStates | None = None,
        media: MediaRows | None = None,
    ) -> Tensor:
        assert inputs.is_floating_point() and states is None and media is None
        return self.block(inputs, self.layer.global_rotary(positions), attend)

    def forward_fused(
        self,
        inputs: Tensor,
        tile: KernelTile,
        rows: Sequence[int],
        states: HiddenStates | None = None,
        deep: Tensor | None = None,
    ) -> Tensor:
        assert inputs.is_floating_point() and states is None and deep is None
        return self.layer.forward_fused(inputs, tile, rows)

    def take_kept(self, accepted: TileFields) -> None:
        self.layer.take_kept(accepted)

    def serve_experts(self) -> None:
        self.layer.serve_experts()

    def normed(self, hidden: Tensor) -> Tensor:
        return self.layer.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        if self.kernels is not None:
            return self.layer.logits(hidden)
        return torch.cat([part(self.layer.norm(hidden)) for part in self.head], dim=-1)

    def ranked_logits(self, hidden: Tensor) -> tuple[Tensor, RankedRows]:
        return self.layer.ranked_logits(hidden)
