# SPDX-License-Identifier: Apache-2.0
"""A GGUF file from a transformers model, as llama.cpp's converter writes it.

Names come from the gguf package's own table, not from ours; the converter's changes to weights are reimplemented here.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": gguf.MODEL_ARCH.DEEPSEEK2,
}


F32 = gguf.GGMLQuantizationType.F32


def convert(
    model: PreTrainedModel,
    path: Path,
    divided_latents: bool = False,
    kind: gguf.GGMLQuantizationType = F32,
    guessing: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Path:
    """Write all weights in blocks of a type, where their rows are whole ones, and the rest in float32. With
    `divided_latents` the products of latents are in two tensors, as in newer files of DeepSeek's models. With tensors
    for `guessing`, by GGUF's names, the model's last layer predicts a further token."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    write_facts(writer, config)
    if config.model_type in SPARSE:
        write_experts(writer, config)
    if config.model_type.startswith("deepseek"):
        write_latents(writer, config, divided_latents)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    tensors = [pair for one in converted(model) for pair in (halves(*one, config) if divided_latents else [one])]
    if guessing:
        writer.add_nextn_predict_layers(1)
    for name, tensor in [*tensors, *guessing.items()]:
        found = name if name in guessing else names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        is_whole = tensor.ndim > 1 and tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        kept = kind if is_whole and not found.endswith(".bias") else F32
        writer.add_tensor(found, gguf.quants.quantize(tensor, kept), raw_dtype=kept)
    if config.model_type == "llama" and rope(config)["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rope(config: PretrainedConfig) -> dict[str, Any]:
    found: dict[str, Any] = config.rope_parameters
    full: dict[str, Any] = found.get("full_attention", found)
    return full


def write_facts(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if not config.model_type.startswith("deepseek"):
        writer.add_key_length(dim)
        writer.add_value_length(dim)
    if "partial_rotary_factor" in rope(config):
        writer.add_rope_dimension_count(int(dim * rope(config)["partial_rotary_factor"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope(config)["rope_theta"])
    writer.add_file_type(0)
    write_scaling(writer, rope(config))
    if config.model_type in ("mistral", "mixtral", "gemma3_text", "gpt_oss"):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma3_text":
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 3)
    if config.model_type == "qwen3_moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def write_scaling(writer: gguf.GGUFWriter, rope: dict[str, Any]) -> None:
    kind = {"linear": gguf.RopeScalingType.LINEAR, "yarn": gguf.RopeScalingType.YARN}.get(rope["rope_type"])
    if kind is not None:
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind is gguf.RopeScalingType.YARN:
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


SPARSE = ("mixtral", "gpt_oss", "glm4_moe", "deepseek_v2", "deepseek_v3")


def write_experts(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """Write what a file states of experts, but for Qwen3's."""
    facts = config.to_dict()
    writer.add_expert_count(facts.get("n_routed_experts") or config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if "moe_intermediate_size" in facts:
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if "n_shared_experts" in facts:
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
        kind = gguf.ExpertGatingFuncType
        sigmoid = config.model_type != "deepseek_v2"
        writer.add_expert_gating_func(kind.SIGMOID if sigmoid else kind.SOFTMAX)
        if sigmoid:
            writer.add_expert_weights_norm(config.norm_topk_prob)


def write_latents(writer: gguf.GGUFWriter, config: PretrainedConfig, divided: bool) -> None:
    """Newer files have one KV head, and names of their own for the sizes of a head."""
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    key = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim if divided else key)
    writer.add_value_length(config.kv_lora_rank if divided else config.v_head_dim)
    if divided:
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(config.v_head_dim)


def halves(name: str, tensor: np.ndarray, config: PretrainedConfig) -> list[tuple[str, np.ndarray]]:
    if not name.endswith("kv_b_proj.weight"):
        return [(name, tensor)]
    heads = tensor.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    keys, values = np.split(heads, [config.qk_nope_head_dim], axis=1)
    stem = name.removesuffix("kv_b_proj.weight")
    parts = {"k_b_proj": keys.swapaxes(1, 2), "v_b_proj": values}
    return [(f"{stem}{part}.weight", np.ascontiguousarray(one)) for part, one in parts.items()]


def converted(model: PreTrainedModel) -> list[tuple[str, np.ndarray]]:
    """Return tensors under the table's names, with values as llama.cpp stores them."""
    config, tensors = model.config, dict(model.state_dict())
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        tensors |= of_experts(tensors, name, ".weight", config.model_type == "gpt_oss")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj_bias", "experts.down_proj_bias"))]:
        tensors |= of_experts(tensors, name, ".bias", True)
    for name in [name for name in tensors if name.endswith("sinks")]:
        tensors[f"{name}.weight"] = tensors.pop(name)
    for name in [name for name in tensors if name.endswith("e_score_correction_bias")]:
        tensors[name.replace("_bias", ".bias")] = tensors.pop(name)
    return [(name, changed(name, tensor, config).contiguous().numpy()) for name, tensor in tensors.items()]


def of_experts(tensors: dict[str, torch.Tensor], name: str, suffix: str, paired: bool) -> dict[str, torch.Tensor]:
    """Take a tensor of all experts: GPT-OSS's have inputs before outputs, and gates and ups in turn."""
    tensor = tensors.pop(name)
    stem = name.removesuffix("_bias").removesuffix("gate_up_proj").removesuffix("down_proj")
    if paired and suffix == ".weight":
        tensor = tensor.transpose(1, 2)
    if "gate_up" not in name:
        return {f"{stem}down_proj{suffix}": tensor}
    gate, up = (tensor[:, 0::2], tensor[:, 1::2]) if paired else tensor.chunk(2, dim=1)
    return {f"{stem}gate_proj{suffix}": gate, f"{stem}up_proj{suffix}": up}


def changed(name: str, tensor: torch.Tensor, config: PretrainedConfig) -> torch.Tensor:
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return tensor + 1
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None or config.model_type not in ("llama", "mistral", "mixtral"):
        return tensor
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def llama3_factors(config: PretrainedConfig) -> np.ndarray:
    """Return the divisor of each frequency: 1 for short waves, the factor for long ones, their harmonic mean in
    between."""
    found = rope(config)
    dim, factor, length = config.head_dim, found["factor"], found["original_max_position_embeddings"]
    factors = []
    for pair in range(dim // 2):
        wave = 2 * np.pi * found["rope_theta"] ** (2 * pair / dim)
        if wave < length / found["high_freq_factor"]:
            factors.append(1.0)
        elif wave > length / found["low_freq_factor"]:
            factors.append(factor)
        else:
            smooth = (length / wave - found["low_freq_factor"]) / (found["high_freq_factor"] - found["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)
