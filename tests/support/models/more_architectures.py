# SPDX-License-Identifier: Apache-2.0
"""Configurations of tiny models that no GGUF file holds here."""

from collections.abc import Callable
from typing import Any

from transformers import (
    BambaConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Glm4Config,
    Glm4MoeConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

YARN = {
    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 256, "mscale": 0.7,
    "mscale_all_dim": 1.1,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
GLM_EXPERTS = {
    "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_group": 2,
    "topk_group": 1,
}  # fmt: skip
HYBRID: dict[str, Any] = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "initializer_range": 0.1,
}
HYBRID_EXPERTS = {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 32, "num_experts": 5}
GRANITE: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 6,
    "mamba_d_state": 16,
    "shared_intermediate_size": 48,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.3,
    "logits_scaling": 2.0,
    "initializer_range": 0.2,
}
Sizes = dict[str, Any]


def latent(sizes: Sizes, **fields: Any) -> Sizes:
    """The fields of a tiny DeepSeek model: in transformers each query head has a KV head."""
    own = {"num_key_value_heads": sizes["num_attention_heads"], "initializer_range": 0.2}
    return LATENT | sizes | own | fields


MORE_CONFIGS: dict[str, Callable[[Sizes], PretrainedConfig]] = {
    "bamba": lambda sizes: BambaConfig(
        **(sizes | {"initializer_range": 0.1}), attn_layer_indices=[1], mamba_n_heads=6, mamba_n_groups=2,
        mamba_d_state=16, mamba_d_conv=3,
    ),
    "granitemoehybrid": lambda sizes: GraniteMoeHybridConfig(
        **(sizes | GRANITE | {"intermediate_size": 32}), num_local_experts=5, num_experts_per_tok=2,
    ),
    "granitemoehybrid-dense": lambda sizes: GraniteMoeHybridConfig(
        **(sizes | GRANITE), num_local_experts=0, position_embedding_type="rope", tie_word_embeddings=True,
    ),
    "qwen3_next": lambda sizes: Qwen3NextConfig(**(HYBRID_EXPERTS | sizes | HYBRID), num_experts_per_tok=2),
    "qwen3_5_text": lambda sizes: Qwen3_5TextConfig(**(sizes | HYBRID), tie_word_embeddings=True),
    "qwen3_5_moe_text": lambda sizes: Qwen3_5MoeTextConfig(
        **(HYBRID_EXPERTS | sizes | HYBRID), num_experts_per_tok=2
    ),
    "mixtral": lambda sizes: MixtralConfig(
        **sizes, num_local_experts=sizes.get("num_experts", 5), num_experts_per_tok=2, sliding_window=65
    ),
    "gpt_oss": lambda sizes: GptOssConfig(
        **(sizes | {"initializer_range": 0.2}), head_dim=16, num_local_experts=sizes.get("num_experts", 5),
        num_experts_per_tok=2, sliding_window=65, swiglu_limit=1.5,
    ),
    "glm4": lambda sizes: Glm4Config(**sizes, head_dim=16),
    "glm4_moe": lambda sizes: Glm4MoeConfig(
        **(GLM_EXPERTS | sizes), use_qk_norm=True, attention_bias=True, routed_scaling_factor=1.5
    ),
    "deepseek_v2": lambda sizes: DeepseekV2Config(
        **latent(
            sizes, q_lora_rank=None, n_shared_experts=2, topk_method="group_limited_greedy", n_group=4, topk_group=2,
            routed_scaling_factor=4.0, rope_parameters=YARN,
        )
    ),
    "deepseek_v3": lambda sizes: DeepseekV3Config(
        **latent(sizes, n_group=4, topk_group=2, routed_scaling_factor=2.5, rope_parameters=YARN)
    ),
}  # fmt: skip
