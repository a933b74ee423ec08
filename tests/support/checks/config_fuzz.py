# SPDX-License-Identifier: Apache-2.0
"""Configurations and headers of model files with wrong numbers, as a damaged or hostile file may have them."""

import random
from typing import Any

from pontil.runtime.models.architectures import Architecture

NUMBERS: tuple[Any, ...] = (
    10**400, -(10**400), 1 << 80, 10**8, (1 << 31) - 1, -1, 0, 1, 2, 3, 0.5, -0.0, 1e308, 5e-324, 1e400, -1e400,
    float("nan"), True, False, None, "7", "", [], [1], [-1, 10**30], [None] * 9, {}, {"factor": 0},
)  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5,
    "original_max_position_embeddings": 64, "attention_factor": 1.1,
}  # fmt: skip
SCALINGS: tuple[dict[str, Any], ...] = (
    YARN,
    {key: value for key, value in YARN.items() if key != "attention_factor"},
    {"rope_type": "linear", "factor": 2.0},
    {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {},
)  # fmt: skip
# A number for every field that some architecture reads.
FIELDS: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    "dtype": "bfloat16", "eos_token_id": [2, 3], "bos_token_id": 1, "sliding_window": 8, "use_sliding_window": True,
    "max_window_layers": 2, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16, "rope_local_base_freq": 1e4,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "decoder_sparse_step": 1, "mlp_only_layers": [1], "n_group": 2,
    "topk_group": 1, "routed_scaling_factor": 1.0, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "swiglu_alpha": 1.7, "swiglu_limit": 7.0, "attn_layer_indices": [1],
}  # fmt: skip


def config_of(architecture: Architecture, scaling: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration of an architecture that is read without complaint."""
    data = {**architecture.defaults, **FIELDS, **architecture.fixed, "rope_scaling": scaling}
    data = {key: value for key, value in data.items() if value is not None}
    if architecture.partial_rotary:
        data["partial_rotary_factor"] = 0.5
    if architecture.nested_in is None:
        return data | {"model_type": architecture.name}
    whole: dict[str, Any] = data
    for key in reversed(architecture.section):
        whole = {key: whole}
    return whole | {"model_type": architecture.nested_in}


def changed(data: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return the configuration with one number wrong, at any depth."""
    key = chance.choice(sorted(data))
    value = data[key]
    if isinstance(value, dict) and value and chance.random() < 0.8:
        return data | {key: changed(value, chance)}
    return data | {key: chance.choice(NUMBERS)}
