# SPDX-License-Identifier: Apache-2.0
"""BERT (Devlin et al., 2019) and its kin: a post-norm encoder with learned positions. Tensor names are those of Hugging
Face's BERT."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.kv.sequence_attention import attend_within
from pontil.runtime.models.embedding_model import SequenceText
from pontil.runtime.models.encoder_config import EncoderConfig, ScoreHead
from pontil.runtime.models.pair_scores import EncoderHead
from pontil.runtime.models.weights import Weights

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class LayerNorm:
    """`(x - mean) / deviation * weight + bias` over the last axis, float32."""

    def __init__(self, weights: Weights, name: str, config: EncoderConfig) -> None:
        self.weight = weights.take(f"{name}.weight", config.hidden_size)
        self.bias = weights.take(f"{name}.bias", config.hidden_size)
        self.eps = config.layer_norm_eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class EncoderLayer:
    """Attention and MLP; each result is added to its input, and their sum is normed."""

    def __init__(self, config: EncoderConfig, index: int, weights: Weights) -> None:
        prefix, hidden, inner = f"encoder.layer.{index}.", config.hidden_size, config.intermediate_size
        names = [f"{prefix}attention.self.{part}" for part in ("query", "key", "value")]
        self.qkv = weights.linear(hidden, *((name, hidden) for name in names), bias=True)
        self.o = weights.linear(hidden, (f"{prefix}attention.output.dense", hidden), bias=True)
        self.attention_norm = LayerNorm(weights, f"{prefix}attention.output.LayerNorm", config)
        self.up = weights.linear(hidden, (f"{prefix}intermediate.dense", inner), bias=True)
        self.down = weights.linear(inner, (f"{prefix}output.dense", hidden), bias=True)
        self.norm = LayerNorm(weights, f"{prefix}output.LayerNorm", config)
        self.activation = ACTIVATIONS[config.activation]
        self.heads, self.head_dim = config.num_heads, config.head_dim

    def __call__(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """Compute the layer for x float32 [rows, hidden_size], the rows of sequences of these lengths."""
        q, k, v = self.qkv(x).view(len(x), 3, self.heads, self.head_dim).unbind(1)
        parts = zip(*(one.split(list(lengths)) for one in (q, k, v)), strict=True)
        scale = self.head_dim**-0.5
        attended = torch.cat([attend_within(*part, scale=scale, causal=False) for part in parts])
        x = self.attention_norm(self.o(attended.reshape(len(x), -1)) + x)
        return self.norm(self.down(self.activation(self.up(x))) + x)


class Bert:
    """An EmbeddingModel. With kernels, whose products are batch-invariant, sequences are computed together; without,
    one at a time, since torch's products are not. With a `head` it scores pairs."""

    def __init__(self, config: EncoderConfig, weights: Weights, head: ScoreHead | None = None) -> None:
        self.config, self.device, self.kernels = config, weights.device, weights.kernels
        self.hidden_size = hidden = config.hidden_size
        self.words = weights.take("embeddings.word_embeddings.weight", config.vocab_size, hidden)
        self.positions = weights.take("embeddings.position_embeddings.weight", config.max_positions, hidden)
        kinds = config.type_vocab_size
        self.types = weights.take("embeddings.token_type_embeddings.weight", kinds, hidden) if kinds else None
        self.norm = LayerNorm(weights, "embeddings.LayerNorm", config)
        self.layers = [EncoderLayer(config, index, weights) for index in range(config.num_layers)]
        self.head = None if head is None else EncoderHead(head, hidden, weights)
        weights.finish()

    def hidden_states(self, texts: Sequence[SequenceText]) -> list[Tensor]:
        if self.kernels is not None:
            return self.together(texts)
        return [self.together([text])[0] for text in texts]

    def together(self, texts: Sequence[SequenceText]) -> list[Tensor]:
        lengths = [len(text.ids) for text in texts]
        ids = torch.tensor([token for text in texts for token in text.ids], device=self.device)
        places = torch.cat([torch.arange(length, device=self.device) for length in lengths])
        words, positions = self.words[ids], self.positions[places + self.config.first_position]
        kinds = self.kinds(texts)
        hidden = self.norm(words + positions if kinds is None else words + kinds + positions)
        for layer in self.layers:
            hidden = layer(hidden, lengths)
        return list(hidden.split(lengths))

    def kinds(self, texts: Sequence[SequenceText]) -> Tensor | None:
        """Return the rows of the tokens' types, one for all where all are of the first type; None without such rows."""
        if self.types is None:
            return None
        if not any(text.types for text in texts):
            return self.types[0]
        types = [one for text in texts for one in (text.types or [0] * len(text.ids))]
        return self.types[torch.tensor(types, device=self.device)]
