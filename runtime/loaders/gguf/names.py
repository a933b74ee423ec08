# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's names for GGUF's tensors. No torch here."""

from __future__ import annotations

from pontil.runtime.loaders.facts.layout import ROPE_FACTORS

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
SANDWICH_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
EXPERT_NAMES = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
"""Tensors that hold the weights of all experts of a layer, one after the other."""


def canonical_name(name: str, sandwich: bool) -> str:
    """Hugging Face's name; an unknown name is returned unchanged, for the check of shapes to refuse."""
    known = LAYER_NAMES | SANDWICH_NAMES if sandwich else LAYER_NAMES
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in known and parts[3] in ("weight", "bias"):
        return f"model.layers.{parts[1]}.{known[parts[2]]}.{parts[3]}"
    return TOP_NAMES.get(name, name)


def expert_names(name: str, count: int) -> list[str]:
    """Hugging Face's name of each expert in a tensor that stacks them; none for any other tensor."""
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in EXPERT_NAMES or parts[3] != "weight":
        return []
    prefix = f"model.layers.{parts[1]}.mlp.experts"
    return [f"{prefix}.{number}.{EXPERT_NAMES[parts[2]]}.weight" for number in range(count)]
