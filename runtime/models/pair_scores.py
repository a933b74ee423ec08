# SPDX-License-Identifier: Apache-2.0
"""The score of a pair of texts, from the hidden states of both as one sequence.

Each pair is scored alone, in products of one shape: so no bit of a score depends on what else is computed (C16).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.kernels.linear import Product
from pontil.runtime.models.embedding_model import EmbeddingModel, SequenceText
from pontil.runtime.models.encoder_config import ScoreHead
from pontil.runtime.models.weights import Weights

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu}


class EncoderHead:
    """A ScoreHead's layers over the first row of a pair."""

    def __init__(self, head: ScoreHead, hidden: int, weights: Weights) -> None:
        self.dense: Product = weights.linear(hidden, (head.dense, hidden), bias=True)
        self.weight = weights.take(f"{head.out}.weight", 1, hidden)
        self.bias = weights.take(f"{head.out}.bias", 1)
        self.activation, self.squashed = ACTIVATIONS[head.activation], head.squashed

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the score, float32 [1], of hidden states [rows, hidden_size]."""
        logit = F.linear(self.activation(self.dense(hidden[:1])), self.weight, self.bias)[0]
        return torch.sigmoid(logit) if self.squashed else logit


@dataclass(frozen=True, slots=True)
class DecoderHead:
    """A decoder's judgement after its last row: of two `rows` of its head, for the words no and yes, how likely yes is;
    of one row, how likely that is at all."""

    rows: Tensor

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the score, float32 [1], of hidden states [rows, hidden_size]."""
        logits = F.linear(hidden[-1:].float(), self.rows)[0]
        return torch.sigmoid(logits[-1:] - logits[:-1] if len(logits) > 1 else logits)


@dataclass(frozen=True, slots=True)
class PairScores:
    """A TextAnswers, whose one number is the score of a pair of texts."""

    model: EmbeddingModel
    head: EncoderHead | DecoderHead
    size: int = 1

    def of(self, texts: Sequence[SequenceText]) -> list[Tensor]:
        return [self.head(states) for states in self.model.hidden_states(texts)]
