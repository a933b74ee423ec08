# SPDX-License-Identifier: Apache-2.0
"""Weights of a GGUF file, dequantized to bfloat16 and named and ordered as Hugging Face's Llama has them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.fingerprint import fingerprint
from pontil.runtime.loaders.gguf_config import gguf_config
from pontil.runtime.loaders.gguf_header import GgufTensor, read_header
from pontil.runtime.loaders.llama_layout import check_shapes
from pontil.runtime.models.config import ModelConfig

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CHUNK_ELEMENTS = 1 << 18
"""How much is held in float32 at a time: what fits the cache is fastest, and a large embedding would need gigabytes."""
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """`places` is keyed by Hugging Face's names."""

    config: ModelConfig
    fingerprint: str
    path: Path
    places: dict[str, GgufTensor]

    @classmethod
    def open(cls, path: Path) -> GgufCheckpoint:
        header = read_header(path)
        config = gguf_config(header)
        places = {canonical_name(name): tensor for name, tensor in header.tensors.items()}
        check_shapes(config, {name: tensor.shape for name, tensor in places.items()}, path)
        size = path.stat().st_size
        for name, tensor in places.items():
            if tensor.offset + byte_size(name, tensor) > size:
                raise ModelError(f"{path} is cut off before the end of {name}: fetch it again")
        return cls(config, fingerprint(config, [path]), path, places)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            data = np.memmap(self.path, mode="r")
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.path} cannot be read: {error}") from error
        for name, place in self.places.items():
            tensor = read_tensor(data, name, place, DTYPES[self.config.dtype])
            yield name, self.in_halves(name, tensor)

    def in_halves(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name.endswith(".q_proj.weight"):
            return halves_from_pairs(tensor, self.config.num_heads)
        if name.endswith(".k_proj.weight"):
            return halves_from_pairs(tensor, self.config.num_kv_heads)
        return tensor


def canonical_name(name: str) -> str:
    """Hugging Face's name; a name that is not Llama's stays, for the check of shapes to refuse."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"
    return TOP_NAMES.get(name, name)


def halves_from_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates neighbouring rows (0, 1), (2, 3), … of each head, Hugging Face rows of its two halves
    (0, d/2), (1, d/2 + 1), …: the converter interleaved the halves, this takes them apart again. Shape [rows, columns].
    """
    return weight.reshape(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def byte_size(name: str, tensor: GgufTensor) -> int:
    """Raises ModelError for a type of numbers that is not known, or rows that are not whole blocks of it."""
    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    except (ValueError, KeyError) as error:
        raise ModelError(
            f"the tensor {name} has the unknown ggml type {tensor.kind}: update the gguf package"
        ) from error
    if tensor.shape[-1] % block:
        raise ModelError(f"the rows of the tensor {name} are not whole blocks of {block}: fetch the model again")
    return math.prod(tensor.shape) // block * size


def read_tensor(data: np.memmap, name: str, place: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
    """Dequantized to `dtype` by way of float32."""
    kind = GGMLQuantizationType(place.kind)
    columns = place.shape[-1]
    stored = data[place.offset : place.offset + byte_size(name, place)].reshape(math.prod(place.shape) // columns, -1)
    step = max(1, CHUNK_ELEMENTS // columns)
    result = torch.empty(stored.shape[0], columns, dtype=dtype)
    for start in range(0, stored.shape[0], step):
        result[start : start + step] = torch.from_numpy(numbers(name, stored[start : start + step], kind))
    return result.reshape(place.shape)


def numbers(name: str, rows: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Rows of stored bytes as float32."""
    if kind == GGMLQuantizationType.F32:
        return np.array(rows.view(np.float32))
    if kind == GGMLQuantizationType.F16:
        return rows.view(np.float16).astype(np.float32)
    try:
        return dequantize(rows, kind)
    except NotImplementedError as error:
        raise ModelError(f"the tensor {name} is quantized as {kind.name}, which cannot be read: use another") from error
