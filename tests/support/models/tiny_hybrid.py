# SPDX-License-Identifier: Apache-2.0
"""A tiny random Qwen3-Next as a Hugging Face directory with a tokenizer, as workers load it."""

from pathlib import Path
from typing import Any

from tiny_llama import END_ID, byte_level_tokenizer, random_tensors, tokenizer_config, write_json, write_weights

from pontil.runtime.loaders.hf.config import read_hf_config
from pontil.runtime.models.config import ModelConfig


def write_tiny_hybrid(directory: Path, dtype: str = "float32", **more: Any) -> ModelConfig:
    """Write a model of two recurrent layers, one with attention and another recurrent one, all with experts."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer()
    kinds = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    own = {
        "model_type": "qwen3_next", "torch_dtype": dtype, "vocab_size": tokenizer.get_vocab_size(), "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "eos_token_id": END_ID,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "layer_types": kinds,
        "shared_expert_intermediate_size": 64,
    }  # fmt: skip
    write_json(directory / "config.json", own | more)
    config = read_hf_config(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    write_weights(directory, dict(random_tensors(config, 0)), 1)
    return config
