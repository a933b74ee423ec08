# SPDX-License-Identifier: Apache-2.0
"""Random draft layers: an MTP layer in the directory of a tiny DeepSeek V3 or hybrid model, and an EAGLE head for a
tiny Llama."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_hybrid import write_tiny_hybrid
from tiny_latent import write_tiny_deepseek
from tiny_llama import write_json

from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.draft_layers import APART, DraftLayerSource, eagle_source, mtp_source, one_layer
from pontil.runtime.loaders.facts.shards import WHOLE

# The published names of an MTP layer apart, by those here.
PUBLISHED = {
    "enorm.": "mtp.pre_fc_norm_embedding.", "hnorm.": "mtp.pre_fc_norm_hidden.", "eh_proj.": "mtp.fc.",
    "model.norm.": "mtp.norm.", "model.layers.0.": "mtp.layers.0.",
}  # fmt: skip


def random_layer(source: DraftLayerSource, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in source.shapes.items():
        values = torch.randn(shape, generator=generator)
        made[name] = 1 + 0.1 * values if len(shape) == 1 else values / shape[-1] ** 0.5
    return made


def write_mtp_model(folder: Path, seed: int = 5, dtype: str = "float32", by_kernels: bool = False) -> None:
    """Write a tiny DeepSeek V3 with an MTP layer, by the names under which it is published."""
    write_tiny_deepseek(folder, dtype, by_kernels)
    data = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", data | {"num_nextn_predict_layers": 1, "routed_scaling_factor": 2.5})
    layer, tensors = data["num_hidden_layers"], load_file(folder / WHOLE)
    kind = tensors["model.norm.weight"].dtype
    for name, tensor in random_layer(mtp_source(folder), seed).items():
        own = name.removeprefix("model.layers.0.").replace("model.norm", "shared_head.norm")
        tensors[f"model.layers.{layer}.{own}"] = tensor.to(kind)
    tensors[f"model.layers.{layer}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"model.layers.{layer}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, folder / WHOLE, metadata={"format": "pt"})


def add_mtp_apart(folder: Path, seed: int = 5) -> dict[str, torch.Tensor]:
    """Add the MTP layer of a Qwen3-Next or a Qwen3.5 to its directory, by the names under which it is published, and
    return it."""
    tensors, config = load_file(folder / WHOLE), one_layer(read_config(folder))
    kind, made = next(iter(tensors.values())).dtype, dict[str, torch.Tensor]()
    for name, tensor in random_layer(DraftLayerSource(folder, config, True, APART), seed).items():
        start = next(start for start in PUBLISHED if name.startswith(start))
        made[PUBLISHED[start] + name.removeprefix(start)] = tensor.to(kind)
    save_file(tensors | made, folder / WHOLE, metadata={"format": "pt"})
    return made


def write_mtp_hybrid(folder: Path, dtype: str = "float32") -> None:
    """Write a tiny Qwen3-Next with an MTP layer."""
    write_tiny_hybrid(folder, dtype)
    add_mtp_apart(folder)


def eagle_config(target: Path) -> dict[str, object]:
    """The fields of config.json of an EAGLE head for this Llama."""
    config = read_config(target)
    return {
        "architectures": ["LlamaForCausalLMEagle"], "model_type": "llama", "num_hidden_layers": 1,
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size, "rms_norm_eps": config.rms_norm_eps,
        "intermediate_size": config.intermediate_size, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim, "hidden_act": "silu",
        "max_position_embeddings": config.max_model_len, "rope_theta": config.rope_theta, "torch_dtype": "float32",
        "bias": True,
    }  # fmt: skip


def write_eagle_head(folder: Path, target: Path, seed: int = 6) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", eagle_config(target))
    made = random_layer(eagle_source(target, folder), seed)
    tensors = {re.sub("^model.", "", name).replace("eh_proj", "fc"): tensor for name, tensor in made.items()}
    tensors["embed_tokens.weight"] = load_file(target / WHOLE)["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / WHOLE, metadata={"format": "pt"})
