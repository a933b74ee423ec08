# SPDX-License-Identifier: Apache-2.0
"""What an architecture needs to know about a model, whatever file it was read from. No torch here: the proxy reads it
too."""

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes in elements. `architecture` is Hugging Face's `model_type` ("llama")."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    dtype: str
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    def fingerprint(self) -> str:
        """Equal for equal configurations. The loader adds what identifies the weights."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]
