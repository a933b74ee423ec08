# SPDX-License-Identifier: Apache-2.0
"""Sizes of tiny models that ranks can divide: of mixtures of experts, and of hybrids."""

from typing import Any

from architectures import SIZES

EVEN = SIZES | {
    "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 8, "num_key_value_heads": 4,
    "moe_intermediate_size": 64, "num_experts": 8, "num_hidden_layers": 2,
}  # fmt: skip
LATENT = {"n_routed_experts": 8, "q_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 16}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": EVEN,
    "qwen3_moe": EVEN,
    "gpt_oss": EVEN,
    "glm4_moe": EVEN,
    "deepseek_v2": EVEN | LATENT,
    "deepseek_v3": EVEN | LATENT,
}
DEEPER = EVEN | {"num_hidden_layers": 3}
RECURRENT: dict[str, dict[str, Any]] = {
    "qwen3_next": DEEPER, "qwen3_5_text": DEEPER, "bamba": DEEPER | {"hidden_size": 384},
}  # fmt: skip
"""Two ranks can divide these."""
