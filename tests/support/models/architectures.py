# SPDX-License-Identifier: Apache-2.0
"""A tiny random model of every architecture, made by transformers and loaded by our own loaders."""

from pathlib import Path
from typing import Any

import torch
from more_architectures import MORE_CONFIGS
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.model import Model
from pontil.runtime.models.partition import Arithmetic
from pontil.runtime.models.weights import Packing, Weights

VOCAB = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROUND_SIZES = SIZES | {
    "hidden_size": 96, "moe_intermediate_size": 32, "q_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 48,
}  # fmt: skip
"""For the kernels, which take multiples of 16."""
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 256}


def hugging_config(name: str, sizes: dict[str, Any] = SIZES) -> PretrainedConfig:
    """Return the config; `name` is an architecture, or one with a special feature after a dash."""
    if name in MORE_CONFIGS:
        return MORE_CONFIGS[name](sizes)
    match name:
        case "llama":
            return LlamaConfig(**sizes, attention_bias=True)
        case "llama-linear":
            return LlamaConfig(**sizes, rope_parameters=LINEAR)
        case "llama-llama3":
            return LlamaConfig(**sizes, rope_parameters=LLAMA3, tie_word_embeddings=True)
        case "llama-yarn":
            return LlamaConfig(**sizes, rope_parameters=YARN)
        case "mistral":
            return MistralConfig(**sizes, sliding_window=37, head_dim=16)
        case "qwen2":
            return Qwen2Config(**sizes, tie_word_embeddings=True)
        case "qwen2-windows":
            return Qwen2Config(**sizes, use_sliding_window=True, sliding_window=65, max_window_layers=1)
        case "qwen3":
            return Qwen3Config(**sizes, head_dim=16)
        case "qwen3_moe":
            return Qwen3MoeConfig(**(expert_sizes() | sizes), norm_topk_prob=True)
        case "qwen3_moe-dense":
            return Qwen3MoeConfig(**(expert_sizes() | sizes), norm_topk_prob=False, mlp_only_layers=[1])
    assert name == "gemma3_text"
    rope = {"full_attention": LINEAR | {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    window: dict[str, Any] = {"sliding_window": 64, "layer_types": kinds, "query_pre_attn_scalar": 20}
    return Gemma3TextConfig(**sizes, **window, head_dim=32, rope_parameters=rope)


def expert_sizes() -> dict[str, int]:
    return {"head_dim": 16, "moe_intermediate_size": 24, "num_experts": 5, "num_experts_per_tok": 2}


COMMON_NAMES = (
    "llama", "llama-linear", "llama-llama3", "llama-yarn", "mistral", "qwen2", "qwen2-windows", "qwen3", "qwen3_moe",
    "qwen3_moe-dense", "gemma3_text",
)  # fmt: skip
NAMES = (*COMMON_NAMES, *MORE_CONFIGS)
HYBRIDS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "bamba", "granitemoehybrid", "granitemoehybrid-dense")


def hugging_model(name: str, sizes: dict[str, Any] = SIZES) -> PreTrainedModel:
    """Return a float32 model. Every vector (norms, biases) is random too: a fresh model's constant ones would hide
    mistakes."""
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(hugging_config(name, sizes), attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        for buffer in model.buffers():
            if buffer.ndim == 1 and buffer.dtype == torch.float32 and not buffer.any():
                # The bias of a choice of experts.
                buffer.add_(torch.randn_like(buffer) * 0.1)
        if name == "gemma3_text":
            # With a tied head, unscaled embeddings would make every token predict itself.
            model.get_input_embeddings().weight.mul_(0.1)
    return model


def read_model(
    path: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    kernels: KernelLibrary | None = None,
    deterministic: bool = False,
    by_torch: tuple[str, ...] = (),
    adapters: bool = False,
) -> Model:
    """Read a model as a worker does: on a device with the numbers of its files, and with places for `adapters`."""
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    weights = Weights(
        checkpoint.tensors(dtype) if device == "cpu" else checkpoint.for_device().levels(dtype),
        torch.device(device),
        dtype,
        Packing.of(kernels),
        arithmetic=Arithmetic(deterministic, by_torch=by_torch, adapters=adapters),
        block=config.weight_block,
    )
    return build_model(config, weights)
