# SPDX-License-Identifier: Apache-2.0
"""The interface of a model to the engine."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.linear import Product
from pontil.gpu_ops.kernels.tile import KernelTile
from pontil.gpu_ops.kernels.weights.structures import TileFields
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.parameters.draws import RankedRows
from pontil.runtime.models.adapters import ModelAdapters
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.media_rows import MediaRows


class Model(Protocol):
    """A batch-invariant decoder: a row's bits depend only on its token, its position and its keys (C16).

    `linears` are the products of `forward`, whose classes of row counts are measured; the head, in one or more parts,
    is apart because it sees other row counts. `forward` and `logits` are separate because only sampled rows need the
    vocabulary.

    A model with `kernels` computes by `forward_fused` instead of `forward` and is batch-invariant for every tile:
    prompt positions and generated ones may stand in one tile, of any number of rows.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def kernels(self) -> KernelLibrary | None: ...

    @property
    def communicator(self) -> Communicator:
        """The ranks that hold the model together."""

    @property
    def adapters(self) -> ModelAdapters: ...

    @property
    def linears(self) -> Sequence[Product]: ...

    @property
    def head(self) -> Sequence[Product]: ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings of token_ids int64 [rows]: float32 [rows, hidden_size]."""

    def forward(
        self,
        inputs: Tensor,
        positions: Tensor,
        attend: PagedAttention,
        states: HiddenStates | None = None,
        media: MediaRows | None = None,
    ) -> Tensor:
        """Return the normed hidden states, float32 [rows, hidden_size], of inputs at positions int64 [rows].

        `inputs` are token ids int64 [rows], or embeddings as `embed` gives them, with the same results. `states`
        receives states of all rows. Where some stand for images, `media` has what all rows have instead of angles that
        follow from their positions."""

    def forward_fused(
        self,
        inputs: Tensor,
        tile: KernelTile,
        rows: Sequence[int],
        states: HiddenStates | None = None,
        deep: Tensor | None = None,
    ) -> Tensor:
        """Return the last layer's hidden states of the given rows, in rising order, before the last norm: float32
        [len(rows), hidden_size]. `inputs` and `states`, of all the tile's rows, are those of `forward`. The last
        layer's results for other rows are not computed. With media the tile has their angles, and `deep` is theirs."""

    def take_kept(self, accepted: TileFields) -> None:
        """Take rows that verified guesses, and were right, into the states of recurrent layers. Only with kernels."""

    def serve_experts(self) -> None:
        """Take part in a pass of data-parallel ranks without rows: compute those that they send to the experts here."""

    def normed(self, hidden: Tensor) -> Tensor:
        """Map rows of `forward` or `forward_fused` to normed ones, float32 [rows, hidden_size]: the same for both."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Map rows of `forward` or `forward_fused`, float32 [rows, hidden_size], to float32 [rows, vocab_size]."""

    def ranked_logits(self, hidden: Tensor) -> tuple[Tensor, RankedRows]:
        """Return the logits, and which of them are the highest. Only for a model with `kernels`."""
