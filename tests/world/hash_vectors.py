# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the models for texts: the numbers of a vector, and the score of a pair, are hashes of all tokens.
So each text has one right vector and each pair one right score, to the bit, whatever is computed beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hash_model import StepCost, mixed
from numpy.typing import NDArray
from torch import Tensor
from virtual_time import HERE

from pontil.runtime.models.embedding_model import SequenceText, TextVectors
from pontil.runtime.tokenizer.pair_encoder import FramePart, PairEncoder, TextPair
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.worker.embed.assembly import Embedder

SIZE = 12
# Numbers from -MOST to MOST: their squares add up without rounding.
MOST = 50
# Scores are so many parts of 1, which JSON writes as they are.
SCORES = 1 << 16
# The longest text, or pair of texts, in tokens.
LONGEST = 512


def numbers_of(text: Sequence[int]) -> list[int]:
    """Return the state behind the last token of a text."""
    running = SIZE
    for token in text:
        running = mixed(running, token)
    return [mixed(running, place) % (2 * MOST + 1) - MOST for place in range(SIZE)]


def vector_of(text: Sequence[int], dimensions: int | None) -> NDArray[np.float32]:
    """Return the vector of a text, of length 1: the oracle."""
    kept = numbers_of(text)[:dimensions]
    length = math.sqrt(sum(number * number for number in kept)) or 1.0
    return np.array([number / length for number in kept], np.float32)


def score_of(pair: SequenceText | TextPair) -> float:
    """Return the score of a pair: the oracle."""
    types = pair.types or [0] * len(pair.ids)
    numbers = numbers_of([2 * token + kind for token, kind in zip(pair.ids, types, strict=True)])
    return mixed(SIZE, sum(numbers)) % SCORES / SCORES


def pairs_of(tokenizer: Tokenizer) -> PairEncoder:
    """Return the pairs of a model whose second text has types of its own."""
    return PairEncoder(tokenizer, FramePart([1], [0]), FramePart([2], [0]), FramePart([2], [1]), (0, 1))


class HashEmbedding:
    """An EmbeddingModel without a model. A step of so many rows takes `cost` seconds, or has no memory."""

    hidden_size = SIZE

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost

    def hidden_states(self, texts: Sequence[SequenceText]) -> list[Tensor]:
        """Return the last row of each sequence, which is all that is pooled."""
        seconds = self.cost(sum(len(text.ids) for text in texts), 0)
        if HERE.world.current is not None:
            HERE.world.spend(seconds)
        return [torch.tensor([numbers_of(text.ids)], dtype=torch.float32) for text in texts]


@dataclass(frozen=True, slots=True)
class HashScores:
    """A TextAnswers of the same kind, which scores pairs."""

    model: HashEmbedding
    size: int = 1

    def of(self, texts: Sequence[SequenceText]) -> list[Tensor]:
        self.model.hidden_states(texts)
        return [torch.tensor([score_of(text)]) for text in texts]


def scorer_of(vocab: int, cost: StepCost) -> Embedder:
    """Put the model that scores together, in the same way."""
    return Embedder(HashScores(HashEmbedding(cost)), vocab, LONGEST, "hash score", "hash", "float32", types=2)


def embedder_of(vocab: int, cost: StepCost) -> Embedder:
    """Put the model together, as `runtime/worker/embed/assembly.py` does around one that it loaded."""
    return Embedder(TextVectors(HashEmbedding(cost), "last"), vocab, LONGEST, "hash last", "hash", "float32")
