# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in configurations: published ones, and those that would give wrong results."""

import json
from pathlib import Path
from typing import Any

import pytest

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.hf.config import read_hf_config
from pontil.runtime.models.config import Factors, ModelConfig, RecurrentConfig, SharedExpertConfig

SIZES = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "num_experts": 512,
    "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "mlp_only_layers": [], "rope_theta": 1e7, "partial_rotary_factor": 0.25, "max_position_embeddings": 262144,
}  # fmt: skip
MAMBA = {
    "num_hidden_layers": 12,
    "mamba_n_heads": 64,
    "mamba_d_state": 128,
    "attn_layer_indices": [9],
    "num_key_value_heads": 8,
}
GRANITE = {
    "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 512, "shared_intermediate_size": 1024, "shared_expert_intermediate_size": None,
    "num_experts": None, "num_local_experts": 64, "num_experts_per_tok": 6, "mamba_n_heads": 48, "mamba_d_state": 128,
    "layer_types": ["mamba"] * 39 + ["attention"], "embedding_multiplier": 12, "residual_multiplier": 0.22,
    "attention_multiplier": 0.0078125, "logits_scaling": 6, "position_embedding_type": "nope",
    "partial_rotary_factor": None,
}  # fmt: skip


def read(folder: Path, kind: str, **fields: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **SIZES, **fields}))
    return read_hf_config(folder)


def test_qwen3_next_as_it_is_published(tmp_path: Path) -> None:
    config = read(tmp_path, "qwen3_next")
    layers = tuple(layer for layer in range(48) if layer % 4 != 3)
    assert config.recurrent == RecurrentConfig("joined_gated_delta", layers, 16, 32, 128, 128, 4)
    assert (config.kv_layers, config.place(3), config.place(7), config.place(6)) == (12, 0, 1, 5)
    assert config.rotated == 64 and config.experts is not None and config.experts.shared is not None
    assert config.experts.shared.gated and config.experts.normalize
    # 2 MiB of matrices and 96 KiB of channels in a layer.
    assert config.state_numbers * 4 == 36 * ((2 << 20) + 3 * 8192 * 4)


def test_the_text_of_a_model_that_sees_is_read(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "qwen3_5",
        vision_config={"depth": 2},
        text_config=SIZES | {"layer_types": ["linear_attention"] * 47 + ["full_attention"]},
    )
    assert config.architecture == "qwen3_5_text" and config.recurrent is not None and config.kv_layers == 1
    assert config.recurrent.kind == "gated_delta"


def test_mamba_layers_are_those_without_attention(tmp_path: Path) -> None:
    config = read(tmp_path, "bamba", **MAMBA)
    assert config.recurrent is not None and config.kv_layers == 1 and config.place(9) == 0
    assert (config.recurrent.value_heads, config.recurrent.value_dim, config.recurrent.key_dim) == (64, 64, 128)
    assert read(tmp_path, "bamba", **MAMBA, time_step_limit=[0.0, {"__float__": "Infinity"}]) == config


def test_granite_4_as_it_is_published(tmp_path: Path) -> None:
    config = read(tmp_path, "granitemoehybrid", **GRANITE)
    assert config.recurrent is not None and config.kv_layers == 1 and config.rotated == 0
    assert (config.recurrent.value_heads, config.recurrent.value_dim, config.recurrent.key_heads) == (48, 64, 1)
    assert config.factors == Factors(128.0**2, 12.0, 0.22, 6.0) and config.query_scale == 0.0078125
    assert config.experts is not None and config.experts.normalize and config.experts.count == 64
    assert config.experts.shared == SharedExpertConfig("shared_experts", 1024)
    dense = read(tmp_path, "granitemoehybrid", **GRANITE | {"num_local_experts": 0, "position_embedding_type": "rope"})
    assert dense.experts is None and dense.intermediate_size == 1024 and dense.rotated == dense.head_dim


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("bamba", MAMBA | {"time_step_limit": [0.001, 0.1]}, "time_step_limit"),
        ("bamba", MAMBA | {"attn_layer_indices": "9"}, "attn_layer_indices"),
        ("bamba", MAMBA | {"attn_layer_indices": []}, "recurrent layers only"),
        ("bamba", MAMBA | {"mamba_n_heads": 0}, "value_heads"),
        ("bamba", MAMBA | {"mamba_proj_bias": True}, "mamba_proj_bias"),
        ("granitemoehybrid", GRANITE | {"position_embedding_type": "alibi"}, "rope and nope only"),
        ("granitemoehybrid", GRANITE | {"attention_multiplier": 0.0}, "attention_multiplier is 0"),
        ("granitemoehybrid", GRANITE | {"logits_scaling": 0.0}, "logits_scaling is 0"),
        ("granitemoehybrid", GRANITE | {"residual_multiplier": "1"}, "residual_multiplier"),
        ("granitemoehybrid", GRANITE | {"layer_types": ["mamba"] * 39 + ["conv"]}, "layer_types"),
        ("bamba", MAMBA | {"partial_rotary_factor": 0.001}, "turns 0 of 256"),
        ("qwen3_next", {"layer_types": ["mamba"] * 48}, "layer_types"),
        ("qwen3_next", {"layer_types": ["linear_attention"] * 48}, "recurrent layers only"),
        ("qwen3_next", {"linear_num_key_heads": 5}, "cannot share"),
        ("qwen3_next", {"linear_num_key_heads": 0}, "key_heads"),
        ("qwen3_next", {"linear_conv_kernel_dim": "4"}, "linear_conv_kernel_dim"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    tmp_path: Path, kind: str, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        read(tmp_path, kind, **fields)
