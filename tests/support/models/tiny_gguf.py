# SPDX-License-Identifier: Apache-2.0
"""A GGUF file of a tiny Llama, written from its Hugging Face directory as by llama.cpp's converter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

from pontil.runtime.loaders.gguf.names import LAYER_NAMES, TOP_NAMES
from pontil.runtime.models.config import ModelConfig

GGUF_NAMES = {theirs: ours for ours, theirs in (LAYER_NAMES | TOP_NAMES).items()}


def write_tiny_gguf(path: Path, directory: Path, config: ModelConfig, **changes: Any) -> Path:
    """Write the file. `changes`: extra metadata by key with dots as double underscores, `kind` a ggml type, `drop` a
    tensor, `vocabulary` a writer of another vocabulary than the smallest, `random_blocks` for the weights' bytes,
    `split_max_tensors` for several files."""
    kind = changes.pop("kind", gguf.GGMLQuantizationType.F32)
    drop, is_random = changes.pop("drop", None), changes.pop("random_blocks", False)
    most = changes.pop("split_max_tensors", 0)
    writer = gguf.GGUFWriter(path, changes.pop("architecture", "llama"), split_max_tensors=most)
    changes.pop("vocabulary", add_vocabulary)(writer)
    add_sizes(writer, config, kind)
    for key, value in changes.items():
        kinds: dict[type, Callable[[str, Any], None]] = {str: writer.add_string, list: writer.add_array}
        kinds.get(type(value), writer.add_uint32)(key.replace("__", "."), value)
    for name, stored in load_file(directory / "model.safetensors").items():
        weight = stored.float().numpy()
        if gguf_name(name) != drop:
            add_tensor(writer, gguf_name(name), interleaved(name, weight, config), kind, is_random)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_sizes(writer: gguf.GGUFWriter, config: ModelConfig, kind: gguf.GGMLQuantizationType) -> None:
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_model_len)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_file_type(int(kind))


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_token_list(["a", "bc", ""])
    writer.add_token_types([1, 1, 3])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_tensor(
    writer: gguf.GGUFWriter, name: str, weight: np.ndarray, kind: gguf.GGMLQuantizationType, is_random: bool
) -> None:
    if weight.ndim == 1:
        writer.add_tensor(name, weight)
    elif is_random:
        numbers, size = gguf.GGML_QUANT_SIZES[kind]
        shape = (*weight.shape[:-1], weight.shape[-1] // numbers * size)
        writer.add_tensor(name, np.random.default_rng(1).integers(256, size=shape, dtype=np.uint8), raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)


def gguf_name(name: str) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"


def interleaved(name: str, weight: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Permute rows: row i of a head's first half and row i of its second half become neighbours."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return weight
    halves = weight.reshape(heads, 2, config.head_dim // 2, -1)
    return np.ascontiguousarray(np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(weight.shape))
