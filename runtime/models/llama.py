# SPDX-License-Identifier: Apache-2.0
"""Llama (Touvron et al., 2023): pre-norm blocks of grouped-query attention with rotary positions and a gated MLP.

The residual stream and the logits are float32 whatever the weights are.
"""

import torch
from torch import Tensor

from pontil.gpu_ops.activation import silu_and_mul
from pontil.gpu_ops.attention import PagedAttention
from pontil.gpu_ops.linear import Linear
from pontil.gpu_ops.norm import rms_norm
from pontil.gpu_ops.rotary import apply_rotary, rotary_table
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.weights import Weights


class Block:
    """One layer. Names under `model.layers.<index>.` are Hugging Face's."""

    def __init__(self, config: ModelConfig, index: int, weights: Weights) -> None:
        prefix, hidden, dim = f"model.layers.{index}.", config.hidden_size, config.head_dim
        q_size, kv_size = config.num_heads * dim, config.num_kv_heads * dim
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        self.index, self.config = index, config
        self.input_norm = weights.take(prefix + "input_layernorm.weight", hidden, dtype=torch.float32)
        self.qkv = weights.linear(
            hidden,
            (attention + "q_proj.weight", q_size),
            (attention + "k_proj.weight", kv_size),
            (attention + "v_proj.weight", kv_size),
        )
        self.o = weights.linear(q_size, (attention + "o_proj.weight", hidden))
        self.post_norm = weights.take(prefix + "post_attention_layernorm.weight", hidden, dtype=torch.float32)
        inner = config.intermediate_size
        self.gate_up = weights.linear(hidden, (mlp + "gate_proj.weight", inner), (mlp + "up_proj.weight", inner))
        self.down = weights.linear(inner, (mlp + "down_proj.weight", hidden))
        self.dtype = weights.dtype

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, attend: PagedAttention) -> Tensor:
        """Residual stream in, residual stream out: float32 [rows, hidden_size]."""
        config, rows = self.config, len(hidden)
        x = rms_norm(hidden, self.input_norm, config.rms_norm_eps, self.dtype)
        qkv = self.qkv(x).view(rows, -1, config.head_dim)
        q, k, v = qkv.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        attended = attend(self.index, apply_rotary(q, cos, sin), apply_rotary(k, cos, sin), v)
        hidden = hidden + self.o(attended.reshape(rows, -1))
        x = rms_norm(hidden, self.post_norm, config.rms_norm_eps, self.dtype)
        return hidden + self.down(silu_and_mul(self.gate_up(x)))


class Llama:
    """The decoder. `forward` and `logits` are separate because only sampled rows need the vocabulary."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.dtype, self.device = weights.dtype, weights.device
        self.embedding = weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self.blocks = [Block(config, index, weights) for index in range(config.num_layers)]
        self.norm = weights.take("model.norm.weight", config.hidden_size, dtype=torch.float32)
        self.head = self.take_head(weights)
        weights.finish()
        self.cos, self.sin = rotary_table(config.head_dim, config.max_model_len, config.rope_theta, self.device)

    def take_head(self, weights: Weights) -> Linear:
        """The vocabulary's projection in float32: in bfloat16 distinct logits would round to ties."""
        if self.config.tie_word_embeddings:
            weights.left.pop("lm_head.weight", None)
            return Linear(self.embedding.float())
        size = (self.config.vocab_size, self.config.hidden_size)
        return Linear(weights.take("lm_head.weight", *size, dtype=torch.float32))

    @property
    def linears(self) -> list[Linear]:
        """Every product of `forward`; the head is apart because it sees other row counts."""
        return [one for block in self.blocks for one in (block.qkv, block.o, block.gate_up, block.down)]

    def forward(self, token_ids: Tensor, positions: Tensor, attend: PagedAttention) -> Tensor:
        """token_ids and positions int64 [rows]; returns the normed hidden states, float32 [rows, hidden_size]."""
        hidden = self.embedding[token_ids].float()
        cos, sin = self.cos[positions], self.sin[positions]
        for block in self.blocks:
            hidden = block(hidden, cos, sin, attend)
        return rms_norm(hidden, self.norm, self.config.rms_norm_eps, torch.float32)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, hidden_size] to float32 [rows, vocab_size]."""
        return self.head(hidden)
