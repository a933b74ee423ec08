# SPDX-License-Identifier: Apache-2.0
"""The interface of a model that embeds texts, and a decoder in that role."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.kv.sequence_attention import attend_within
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.rotary import HeadTurn
from pontil.gpu_ops.pooling import pooled, unit
from pontil.gpu_ops.rotary import turn_heads
from pontil.runtime.models.model import Model


class EmbeddingModel(Protocol):
    """A model whose hidden states are pooled. The bits of a sequence do not depend on the others (C16)."""

    @property
    def hidden_size(self) -> int: ...

    def hidden_states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the last hidden states of each sequence of token ids, float32 [rows, hidden_size]."""


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
    """An EmbeddingModel over a decoder without kernels of its own, one sequence at a time."""

    def __init__(self, model: Model) -> None:
        assert model.kernels is None
        self.model = model
        self.hidden_size = model.config.hidden_size

    def hidden_states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        return [self.of_one(sequence) for sequence in sequences]

    def of_one(self, sequence: Sequence[int]) -> Tensor:
        ids = torch.tensor(sequence, dtype=torch.int64, device=self.model.device)
        return self.model.forward(ids, torch.arange(len(sequence), device=self.model.device), CausalAttention())


def text_vectors(
    model: EmbeddingModel, pooling: str, texts: Sequence[tuple[Sequence[int], int | None]]
) -> list[Tensor]:
    """Return the vector of each text, given by its token ids and the wanted dimensions (None: all), of length 1."""
    states = model.hidden_states([ids for ids, _ in texts])
    return [unit(pooled(one, pooling), size) for one, (_, size) in zip(states, texts, strict=True)]
