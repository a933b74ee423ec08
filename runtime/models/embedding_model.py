# SPDX-License-Identifier: Apache-2.0
"""The interface of a model whose hidden states answer for whole texts, by a vector or a score, and a decoder in that
role."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kv.sequence_attention import attend_within
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.cells import row_cells
from pontil.gpu_ops.parameters.rotary import HeadTurn
from pontil.gpu_ops.pooling import pooled, unit
from pontil.gpu_ops.rotary import turn_heads
from pontil.runtime.models.model import Model

# Positions of a block of a sequence's own pool.
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class SequenceText:
    """A text, or a pair of texts in one sequence, by its token ids. `types` says of each token which text of a pair it
    is of; empty: all are of the first. The first `dimensions` numbers of a vector are wanted; None: all."""

    ids: Sequence[int]
    types: Sequence[int] = ()
    dimensions: int | None = None


class EmbeddingModel(Protocol):
    """A model whose hidden states are pooled. The bits of a sequence do not depend on the others (C16)."""

    @property
    def hidden_size(self) -> int: ...

    def hidden_states(self, texts: Sequence[SequenceText]) -> list[Tensor]:
        """Return the last hidden states of each sequence, float32 [rows, hidden_size]."""


class CausalAttention:
    """A PagedAttention of one whole sequence, which needs no pages: nothing is read again later."""

    def __call__(
        self, layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor | None, turn: HeadTurn | None = None
    ) -> Tensor:
        if turn is not None:
            q, k = turn_heads(q, k, turn)
        values = k if v is None else v
        attended = attend_within(q, k, values, scale=layer.scale, causal=True, window=layer.window, sinks=layer.sinks)
        return attended[..., : layer.value_dim]


class DecoderEmbedding:
    """An EmbeddingModel over a decoder, one sequence at a time. With kernels its layers write their keys and values to
    one place, which is given up with the sequence."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.hidden_size = model.config.hidden_size

    def hidden_states(self, texts: Sequence[SequenceText]) -> list[Tensor]:
        return [self.of_one(text.ids) for text in texts]

    def of_one(self, sequence: Sequence[int]) -> Tensor:
        ids = torch.tensor(sequence, dtype=torch.int64, device=self.model.device)
        if self.model.kernels is not None:
            return self.model.normed(self.model.forward_fused(ids, self.tile(len(sequence)), range(len(sequence))))
        return self.model.forward(ids, torch.arange(len(sequence), device=self.model.device), CausalAttention())

    def tile(self, rows: int) -> KernelTile:
        config, dtype, blocks = self.model.config, self.model.dtype, -(-rows // BLOCK_SIZE)
        cells = row_cells(config.head_dim, dtype)
        pool = torch.zeros(blocks, 1, config.kv_planes, config.num_kv_heads, BLOCK_SIZE, cells, dtype=dtype)
        return KernelTile(pool, [TileSpan(0, rows, range(blocks))], dtype)


class TextAnswers(Protocol):
    """A model with what it makes of hidden states: `size` numbers for each text."""

    @property
    def size(self) -> int: ...

    def of(self, texts: Sequence[SequenceText]) -> list[Tensor]:
        """Return the numbers of each text, float32 [size], or as many as are wanted."""


@dataclass(frozen=True, slots=True)
class TextVectors:
    """A TextAnswers by pooling: vectors of length 1."""

    model: EmbeddingModel
    pooling: str

    @property
    def size(self) -> int:
        return self.model.hidden_size

    def of(self, texts: Sequence[SequenceText]) -> list[Tensor]:
        states = self.model.hidden_states(texts)
        return [unit(pooled(one, self.pooling), text.dimensions) for one, text in zip(states, texts, strict=True)]
