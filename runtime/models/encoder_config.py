# SPDX-License-Identifier: Apache-2.0
"""The facts about a bidirectional text encoder, and about what is made of its rows: one vector, or a score. No torch
here."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

Pooling = Literal["mean", "last", "cls"]
# The id of RoBERTa's padding, which its table of positions has a row for.
ROBERTA_PADDING = 1


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes in elements of an encoder like BERT (Devlin et al., 2019). `activation` is Hugging Face's `hidden_act`. One
    of the `architecture` "roberta" counts positions from behind its padding, and one with `type_vocab_size` 0 does not
    tell texts of a pair apart.

    `max_model_len` is the longest text in tokens that the model is meant for; the table of positions may be longer.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    max_positions: int
    max_model_len: int
    type_vocab_size: int
    layer_norm_eps: float
    activation: str

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def first_position(self) -> int:
        """The row of the table of positions that the first token has."""
        return ROBERTA_PADDING + 1 if self.architecture == "roberta" else 0

    def fingerprint(self) -> str:
        """A hash that is equal for equal configurations. The loader adds the identity of the weights."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ScoreHead:
    """Two layers over the first row of a pair of texts, whose one number is the score: `dense` with its `activation`,
    then `out`, by the names of their tensors. One that is `squashed` is between 0 and 1."""

    dense: str
    activation: str
    out: str
    squashed: bool = True

    def fingerprint(self) -> str:
        return f"{self.dense} {self.activation} {self.out} {self.squashed}"
