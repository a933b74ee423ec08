# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's names for GGUF's tensors. No torch here."""

from __future__ import annotations

from pontil.runtime.loaders.facts.layout import ROPE_FACTORS
from pontil.runtime.loaders.facts.weight_forms import Shape
from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.config import ModelConfig

KEYS_OF_LATENTS, VALUES_OF_LATENTS = "self_attn.kv_b_proj.keys", "self_attn.kv_b_proj.values"
"""Two parts of one tensor of Hugging Face's, which newer files hold apart."""
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": ROPE_FACTORS,
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
MORE_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": KEYS_OF_LATENTS,
    "attn_v_b": VALUES_OF_LATENTS,
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.eh_proj": "eh_proj",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_norm": "shared_head.norm",
    "nextn.shared_head_head": "shared_head.head",
}
"""Names in layers that are not Llama's, and in those that predict further tokens."""
WHOLE_NAMES = {
    "attn_sinks.weight": "self_attn.sinks",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
SANDWICH_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
EXPERT_NAMES = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
"""Tensors that hold the weights of all experts of a layer, one after the other."""


def canonical_name(name: str, sandwich: bool) -> str:
    """Hugging Face's name; an unknown name is returned unchanged, for the check of shapes to refuse."""
    known = LAYER_NAMES | MORE_NAMES | (SANDWICH_NAMES if sandwich else {})
    parts = name.split(".")
    if len(parts) < 4 or parts[0] != "blk":
        return TOP_NAMES.get(name, name)
    prefix, last = f"model.layers.{parts[1]}.", ".".join(parts[2:])
    if last in WHOLE_NAMES:
        return prefix + WHOLE_NAMES[last]
    own, _, end = last.rpartition(".")
    return f"{prefix}{known[own]}.{end}" if own in known and end in ("weight", "bias") else name


def names_of(name: str, shape: Shape, config: ModelConfig) -> list[str]:
    """Hugging Face's names of the equal parts that a tensor has along its first dimension: experts, or gates and ups;
    one for any other tensor, and none for one of a layer that predicts further tokens."""
    parts = name.split(".")
    if len(parts) > 2 and parts[0] == "blk" and parts[1].isdecimal() and int(parts[1]) >= config.num_layers:
        return []
    experts = config.experts.count if config.experts else 0
    if len(parts) == 4 and parts[2] in EXPERT_NAMES and parts[3] in ("weight", "bias") and shape[0] == experts:
        prefix = f"model.layers.{parts[1]}.mlp.experts"
        return [f"{prefix}.{number}.{EXPERT_NAMES[parts[2]]}.{parts[3]}" for number in range(experts)]
    if name.endswith(".ffn_up.weight") and shape[0] == 2 * config.intermediate_size:
        return [f"model.layers.{parts[1]}.mlp.{one}.weight" for one in ("gate_proj", "up_proj")]
    return [canonical_name(name, ARCHITECTURES[config.architecture].sandwich_norms)]
