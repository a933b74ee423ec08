# SPDX-License-Identifier: Apache-2.0
"""Tiny models whose last layer predicts a further token, as a GGUF file and as a Hugging Face directory."""

import json
from pathlib import Path

import gguf
import torch
from architectures import SIZES, hugging_model
from converter import convert
from safetensors.torch import load_file, save_file
from tiny_latent import ROUND
from tiny_llama import write_json
from transformers import PreTrainedModel

from pontil.runtime.loaders.facts.shards import WHOLE

HIDDEN = 64
GUESSING = {
    "nextn.enorm": "enorm", "nextn.hnorm": "hnorm", "nextn.eh_proj": "eh_proj",
    "nextn.shared_head_norm": "shared_head.norm", "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
}  # fmt: skip


def made(name: str, by_kernels: bool = False) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """A model whose last layer predicts a further token, and the layer's other tensors by GGUF's names; `by_kernels`:
    a DeepSeek of sizes that the kernels take."""
    sizes = SIZES | {"hidden_size": HIDDEN, "intermediate_size": 96, "moe_intermediate_size": 32}
    sizes |= ROUND if by_kernels else {}
    model = hugging_model(name, sizes | {"num_hidden_layers": 3})
    torch.manual_seed(3)
    of_rows = torch.randn(model.config.vocab_size, HIDDEN)
    shapes = {"nextn.enorm": (HIDDEN,), "nextn.hnorm": (HIDDEN,), "nextn.eh_proj": (HIDDEN, 2 * HIDDEN)}
    more = {one: torch.randn(shape) for one, shape in (shapes | {"nextn.shared_head_norm": (HIDDEN,)}).items()}
    return model, more | {"nextn.embed_tokens": of_rows, "nextn.shared_head_head": of_rows}


def write_file(path: Path, model: PreTrainedModel, more: dict[str, torch.Tensor], kind: int = 0) -> Path:
    tensors = {f"blk.2.{one}.weight": tensor.numpy() for one, tensor in more.items()}
    return convert(model, path, kind=gguf.GGMLQuantizationType(kind), guessing=tensors)


def write_directory(path: Path, model: PreTrainedModel, more: dict[str, torch.Tensor]) -> Path:
    model.save_pretrained(path)
    fields = json.loads((path / "config.json").read_text())
    write_json(path / "config.json", fields | {"num_hidden_layers": 2, "num_nextn_predict_layers": 1})
    tensors = {f"model.layers.2.{GUESSING[one]}.weight": tensor.clone() for one, tensor in more.items()}
    save_file(load_file(path / WHOLE) | tensors, path / WHOLE, metadata={"format": "pt"})
    return path
