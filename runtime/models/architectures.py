# SPDX-License-Identifier: Apache-2.0
"""Every architecture, one row each: a new one is a module in families/ and a row here. No torch here: the proxy reads
configurations too.

Readers of the table: the registry of models, both readers of configurations, the list of tensors that a checkpoint must
hold, and the reader of GGUF's tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Architecture:
    """`name` is Hugging Face's `model_type`, `gguf` the name that GGUF files have for it, if they have one. `target` is
    the module in families/ and its class. `defaults` are Hugging Face's values of fields missing from config.json,
    where architectures differ. `fixed` are the values that this version computes with; a configuration with another
    value would give wrong results.

    Files with `nested_in` as their type have this one in a `section` of its own; of several such architectures the
    first is the one that answers with text. Their tensors have names under `prefix`, and these of the `renamed` ones;
    `others` begin the names of tensors of other parts of such a model, which are not read.

    Windows are used `never`, if they are `asked` for, if they are `stated`, or `always`; by `all` layers, by the
    `upper` ones or in a `pattern`, unless the configuration lists the layers. GGUF files state a window for `all`
    layers, in a `pattern`, or without saying for which layers, so that it is `refused`.

    `head_norms` are applied to queries and keys, `sandwich_norms` also after each half of a layer. GGUF files add one
    to norms that are `offset_norms`, and hold query and key rows that are `interleaved`. With `local_positions`, layers
    with a window have a rotary base of their own and queries are scaled by a stated number. Layers mix positions by
    attention to keys and values of `heads`, or to `latent` vectors, or some of them by a state: of the gated delta
    rule, which reads one projection or several, or of Mamba 2 (runtime/models/config.py).
    Biases that a configuration asks for are also those of the attention's `output`. Heads may be rotated in part
    (`partial_rotary`), have `sinks`, and have norms if the configuration says so (`optional_head_norms`).
    `fused_experts` is how a tensor of all experts' gates and ups holds them (runtime/loaders/hf/fused_experts.py).

    `expert_size` is the field with the size of an expert. `replaced` parts of tensors' names have others here.
    Checkpoints may hold `guessing_layers`, which predict further tokens: numbered `behind` the model's own, or `apart`
    in tensors called `mtp`. They are read as draft layers only.
    """

    name: str
    target: str
    defaults: Mapping[str, Any]
    gguf: str | None = None
    fixed: Mapping[str, Any] = field(default_factory=lambda: {"hidden_act": "silu"})
    nested_in: str | None = None
    section: tuple[str, ...] = ("text_config",)
    prefix: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    window_use: Literal["never", "asked", "stated", "always"] = "asked"
    window_layers: Literal["all", "upper", "pattern"] = "upper"
    gguf_windows: Literal["all", "pattern", "refused"] = "refused"
    gguf_rope_theta: float = 10000.0
    head_norms: bool = False
    sandwich_norms: bool = False
    offset_norms: bool = False
    interleaved: bool = False
    local_positions: bool = False
    qkv_bias: bool = False
    output_bias: bool = True
    partial_rotary: bool = False
    sinks: bool = False
    optional_head_norms: bool = False
    fused_experts: Literal["rows", "columns", "pairs"] = "rows"
    has_experts: bool = False
    expert_size: str = "moe_intermediate_size"
    replaced: Mapping[str, str] = field(default_factory=dict)
    mixer: Literal["heads", "latent", "gated_delta", "joined_gated_delta", "mamba2"] = "heads"
    guessing_layers: Literal["behind", "apart"] | None = None

    @property
    def latent(self) -> bool:
        return self.mixer == "latent"

    @property
    def gated_heads(self) -> bool:
        """Return whether a query's projection also has a gate for each number of its heads."""
        return self.mixer in ("gated_delta", "joined_gated_delta")


DEEPSEEK: dict[str, Any] = {
    "first_k_dense_replace": 0,
    "moe_layer_freq": 1,
    "rope_interleave": True,
    "q_lora_rank": 1536,
}
# The scaling of GPT-OSS.
LONGER: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

QWEN_HYBRID: dict[str, Any] = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
MAMBA: dict[str, Any] = {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4}
PLAIN_MAMBA: dict[str, Any] = {"mamba_conv_bias": True, "mamba_proj_bias": False}
PLAIN: dict[str, Any] = {"hidden_act": "silu", "attention_bias": False}

ROWS = (
    Architecture(
        "llama", "llama:Llama", {"max_position_embeddings": 2048}, gguf="llama",
        window_use="never", gguf_windows="all", interleaved=True,
    ),
    # GGUF files of this architecture say llama.
    Architecture(
        "mistral", "mistral:Mistral",
        {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
        fixed={"hidden_act": "silu", "attention_bias": False}, window_use="stated", window_layers="all",
    ),
    Architecture(
        "qwen2", "qwen2:Qwen2", {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28},
        gguf="qwen2", qkv_bias=True,
    ),
    Architecture(
        "qwen3", "qwen3:Qwen3",
        {"max_position_embeddings": 32768, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        gguf="qwen3", head_norms=True,
    ),
    Architecture(
        "qwen3_moe", "qwen3_moe:Qwen3Moe",
        {
            "max_position_embeddings": 32768, "num_key_value_heads": 4, "sliding_window": 4096,
            "decoder_sparse_step": 1,
        },
        gguf="qwen3moe", window_layers="all", head_norms=True, has_experts=True,
    ),
    Architecture(
        "mixtral", "sparse_llama:SparseLlama",
        # GGUF files of this architecture say llama, and how many experts.
        {
            "max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": None, "rope_theta": 1e6,
            "norm_topk_prob": True, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
        },
        gguf="llama", gguf_windows="all", interleaved=True,
        fixed={"hidden_act": "silu", "attention_bias": False}, window_use="stated", window_layers="all",
        has_experts=True, expert_size="intermediate_size",
        replaced={
            ".block_sparse_moe.": ".mlp.", ".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj.",
        },
    ),
    Architecture(
        "deepseek_v2", "deepseek:DeepSeek",
        DEEPSEEK | {
            "max_position_embeddings": 2048, "norm_topk_prob": False, "scoring_func": "softmax",
            "topk_method": "greedy", "n_shared_experts": 2, "bos_token_id": 1, "eos_token_id": 2,
        },
        gguf="deepseek2",
        # These weights are never divided by their sum.
        fixed={"hidden_act": "silu", "attention_bias": False, "norm_topk_prob": False},
        window_use="never", has_experts=True, mixer="latent",
    ),
    Architecture(
        "deepseek_v3", "deepseek:DeepSeek",
        DEEPSEEK | {
            "max_position_embeddings": 4096, "norm_topk_prob": True, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "first_k_dense_replace": 3, "n_shared_experts": 1, "n_group": 8,
            "topk_group": 4, "routed_scaling_factor": 2.5, "bos_token_id": 0, "eos_token_id": 1,
        },
        gguf="deepseek2",
        fixed={"hidden_act": "silu", "attention_bias": False}, window_use="never", has_experts=True, mixer="latent",
        guessing_layers="behind",
    ),
    Architecture(
        "qwen3_next", "qwen3_next:Qwen3Next",
        QWEN_HYBRID | {"max_position_embeddings": 32768, "norm_topk_prob": True, "decoder_sparse_step": 1},
        fixed=PLAIN, others=("mtp.",), window_use="never", head_norms=True, offset_norms=True, partial_rotary=True,
        has_experts=True, mixer="joined_gated_delta", guessing_layers="apart",
    ),
    # Positions have three parts, which are equal in text, as below.
    Architecture(
        "qwen3_5_text", "qwen3_next:Qwen3Next",
        QWEN_HYBRID | {"max_position_embeddings": 32768, "num_key_value_heads": 4},
        fixed=PLAIN, nested_in="qwen3_5", renamed={"model.language_model.": "model."}, others=("mtp.", "model.visual."),
        window_use="never", head_norms=True, offset_norms=True, partial_rotary=True, mixer="gated_delta",
        guessing_layers="apart",
    ),
    Architecture(
        "qwen3_5_moe_text", "qwen3_next:Qwen3Next",
        QWEN_HYBRID | {"max_position_embeddings": 32768, "norm_topk_prob": True, "intermediate_size": 512},
        fixed=PLAIN, nested_in="qwen3_5_moe", renamed={"model.language_model.": "model."},
        others=("mtp.", "model.visual."), window_use="never", head_norms=True, offset_norms=True, partial_rotary=True,
        has_experts=True, mixer="gated_delta", guessing_layers="apart",
    ),
    Architecture(
        "bamba", "bamba:Bamba",
        MAMBA | {
            "max_position_embeddings": 262144, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5, "bos_token_id": 1, "eos_token_id": 2,
        },
        fixed=PLAIN | PLAIN_MAMBA, window_use="never", partial_rotary=True, mixer="mamba2",
        replaced={
            ".feed_forward.": ".mlp.", ".pre_ff_layernorm.": ".post_attention_layernorm.",
            "model.final_layernorm.": "model.norm.",
        },
    ),
    Architecture(
        "granitemoehybrid", "granite_hybrid:GraniteHybrid",
        MAMBA | {
            "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "norm_topk_prob": True,
            "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024,
            "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0,
            "logits_scaling": 1.0, "position_embedding_type": None,
        },
        fixed=PLAIN | PLAIN_MAMBA, window_use="never", has_experts=True, expert_size="intermediate_size",
        mixer="mamba2",
        replaced={
            ".shared_mlp.input_linear.": ".mlp.shared_experts.gate_up_proj.",
            ".shared_mlp.output_linear.": ".mlp.shared_experts.down_proj.",
            ".block_sparse_moe.input_linear.weight": ".mlp.experts.gate_up_proj",
            ".block_sparse_moe.output_linear.weight": ".mlp.experts.down_proj",
            ".block_sparse_moe.router.layer.": ".mlp.gate.", ".block_sparse_moe.router.": ".mlp.gate.",
            ".block_sparse_moe.": ".mlp.",
        },
    ),
    Architecture(
        "gpt_oss", "gpt_oss:GptOss",
        {
            "max_position_embeddings": 131072, "num_key_value_heads": 8, "head_dim": 64, "attention_bias": True,
            "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "sliding_window": 128, "sliding_window_pattern": 2,
            "norm_topk_prob": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "router_bias": True,
            "rope_scaling": LONGER,
        },
        gguf="gpt-oss", gguf_windows="pattern",
        window_use="always", window_layers="pattern", sinks=True, has_experts=True, expert_size="intermediate_size",
        fused_experts="pairs", replaced={".mlp.router.": ".mlp.gate."},
    ),
    Architecture(
        "glm4", "glm4:Glm4",
        {
            "max_position_embeddings": 131072, "num_key_value_heads": 2, "head_dim": 128, "attention_bias": True,
            "rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5, "rope_interleave": True,
            "eos_token_id": [151329, 151336, 151338],
        },
        gguf="glm4",
        window_use="never", sandwich_norms=True, output_bias=False, partial_rotary=True,
        replaced={
            ".post_attention_layernorm.": ".pre_feedforward_layernorm.",
            ".post_self_attn_layernorm.": ".post_attention_layernorm.",
            ".post_mlp_layernorm.": ".post_feedforward_layernorm.",
        },
    ),
    Architecture(
        "glm4_moe", "glm4:Glm4Moe",
        {
            "max_position_embeddings": 131072, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5, "norm_topk_prob": True, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "first_k_dense_replace": 1, "n_shared_experts": 1,
        },
        gguf="glm4moe",
        window_use="never", output_bias=False, partial_rotary=True, optional_head_norms=True, has_experts=True,
        guessing_layers="behind",
    ),
    Architecture(
        "gemma3_text", "gemma3:Gemma3",
        {
            "max_position_embeddings": 131072, "head_dim": 256, "query_pre_attn_scalar": 256, "rope_theta": 1e6,
            "sliding_window": 4096, "sliding_window_pattern": 6, "tie_word_embeddings": True,
        },
        gguf="gemma3",
        fixed={
            "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": None,
            "final_logit_softcapping": None, "use_bidirectional_attention": False,
        },
        nested_in="gemma3", window_use="always", window_layers="pattern", gguf_windows="pattern", gguf_rope_theta=1e6,
        head_norms=True, sandwich_norms=True, offset_norms=True, local_positions=True,
    ),
    # Positions have three parts (time, height, width), which are equal in text: then each part's share of a head turns
    # as it does by one position.
    Architecture(
        "qwen3_omni_moe_text", "qwen3_moe:Qwen3Moe",
        {"max_position_embeddings": 32768, "decoder_sparse_step": 1, "rope_theta": 1e6, "norm_topk_prob": True},
        nested_in="qwen3_omni_moe", section=("thinker_config", "text_config"), prefix="thinker.",
        renamed={"model.language_model.": "model."},
        others=("thinker.audio_tower.", "thinker.visual.", "thinker.model.audio_tower.", "thinker.model.visual.",
                "talker.", "code2wav."),
        window_use="never", head_norms=True, has_experts=True,
    ),
    Architecture(
        "qwen3_omni_moe_talker_text", "qwen3_moe:Qwen3Moe",
        {"max_position_embeddings": 32768, "decoder_sparse_step": 1, "rope_theta": 1e6, "norm_topk_prob": False},
        nested_in="qwen3_omni_moe", section=("talker_config", "text_config"), prefix="talker.",
        renamed={"model.codec_embedding.": "model.embed_tokens.", "codec_head.": "lm_head."},
        others=("thinker.", "talker.text_projection.", "talker.hidden_projection.", "talker.code_predictor.",
                "code2wav."),
        window_use="never", head_norms=True, has_experts=True,
    ),
)  # fmt: skip
ARCHITECTURES = {row.name: row for row in ROWS}
BY_GGUF_NAME = {
    name: tuple(row for row in ROWS if row.gguf == name) for name in (row.gguf for row in ROWS) if name is not None
}
