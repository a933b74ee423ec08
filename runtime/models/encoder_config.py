# SPDX-License-Identifier: Apache-2.0
"""The facts about a bidirectional text encoder, and about the pooling of its rows to one vector. No torch here."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

Pooling = Literal["mean", "last", "cls"]


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes in elements of an encoder like BERT (Devlin et al., 2019). `activation` is Hugging Face's `hidden_act`.

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

    def fingerprint(self) -> str:
        """A hash that is equal for equal configurations. The loader adds the identity of the weights."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]
