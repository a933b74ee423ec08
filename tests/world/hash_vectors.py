# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the embedding model: the numbers of a vector are hashes of all tokens of its text. So each text has
one right vector, to the bit, whatever is computed beside it."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from hash_model import StepCost, mixed
from numpy.typing import NDArray
from torch import Tensor
from virtual_time import HERE

from pontil.runtime.models.embedding_model import SequenceText, TextVectors
from pontil.runtime.worker.embed.assembly import Embedder

SIZE = 12
# Numbers from -MOST to MOST: their squares add up without rounding.
MOST = 50
# The longest text in tokens.
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


def embedder_of(vocab: int, cost: StepCost) -> Embedder:
    """Put the model together, as `runtime/worker/embed/assembly.py` does around one that it loaded."""
    return Embedder(TextVectors(HashEmbedding(cost), "last"), vocab, LONGEST, "hash last", "hash", "float32")
