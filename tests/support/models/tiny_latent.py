# SPDX-License-Identifier: Apache-2.0
"""A tiny random DeepSeek V3 as a Hugging Face directory with a tokenizer, as workers load it."""

from pathlib import Path
from typing import Any

from more_architectures import LATENT
from tiny_llama import (
    END_ID,
    byte_level_tokenizer,
    random_tensors,
    tokenizer_config,
    write_json,
    write_weights,
)

from pontil.runtime.loaders.hf.config import read_hf_config
from pontil.runtime.models.config import ModelConfig

# The kernels take multiples of 16.
ROUND = {"q_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 16, "moe_intermediate_size": 32}


def write_tiny_deepseek(directory: Path, dtype: str = "float32", by_kernels: bool = False, **more: Any) -> ModelConfig:
    """`by_kernels`: of sizes that the kernels take."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer()
    sizes = {
        "vocab_size": tokenizer.get_vocab_size(), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512, "n_group": 4,
        "topk_group": 2, "rms_norm_eps": 1e-6, "eos_token_id": END_ID, "bos_token_id": 1,
    }  # fmt: skip
    own = LATENT | sizes | (ROUND if by_kernels else {}) | more
    write_json(directory / "config.json", own | {"model_type": "deepseek_v3", "torch_dtype": dtype})
    config = read_hf_config(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    write_weights(directory, dict(random_tensors(config, 0)), 1)
    return config
