# SPDX-License-Identifier: Apache-2.0
"""A tiny random Llama as a Hugging Face directory: real files for tests and trials, made in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.loaders.facts.shards import INDEX, WHOLE
from pontil.runtime.models.config import ModelConfig

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_ID = 2
MERGES = (
    "Ġ t|Ġ a|h e|i n|r e|o n|Ġt he|e r|Ġ s|a t|Ġ w|Ġ o|e n|Ġ c|i t|i s|a n|o r|e s|Ġ b|e d|Ġ f|in g|Ġ p|o u|Ġa n|a l|"
    "a r|Ġt o|Ġ m|Ġo f|Ġ in|Ġ d|Ġ h|Ġan d|i c|a s|l e|Ġt h|i on|Ġ Ġ"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TinySizes:
    """The sizes that `write_tiny_llama` takes. `vocab_size` 0 is the tokenizer's own size; more pads the embedding."""

    hidden_size: int = 64
    intermediate_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    max_model_len: int = 512
    vocab_size: int = 0
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    dtype: str = "float32"


def write_tiny_llama(directory: Path, seed: int = 0, shards: int = 1, **sizes: Any) -> ModelConfig:
    """Write config.json, the weights in `shards` files, and a byte-level tokenizer; return the configuration as
    `read_config` will read it.

    `sizes` are fields of TinySizes. Equal arguments write equal weights. transformers reads the directory too.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer()
    config = tiny_config(TinySizes(**sizes), tokenizer.get_vocab_size())
    write_json(directory / "config.json", hugging_face_form(config))
    write_json(directory / "generation_config.json", {"eos_token_id": [END_ID]})
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    write_weights(directory, dict(random_tensors(config, seed)), shards)
    return config


def tiny_config(sizes: TinySizes, vocabulary: int) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        vocab_size=sizes.vocab_size or vocabulary,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        max_model_len=sizes.max_model_len,
        rms_norm_eps=sizes.rms_norm_eps,
        rope_theta=sizes.rope_theta,
        tie_word_embeddings=sizes.tie_word_embeddings,
        dtype=sizes.dtype,
        eos_token_ids=(END_ID,),
        bos_token_id=1,
    )


def hugging_face_form(config: ModelConfig) -> dict[str, Any]:
    """The fields of config.json as transformers writes them."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_model_len,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": config.dtype,
        "hidden_act": "silu",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": END_ID,
    }


def byte_level_tokenizer() -> Tokenizer:
    """A tokenizer of three special tokens, the 256 bytes, and a few dozen merges of frequent English pairs."""
    vocabulary = list(SPECIAL_TOKENS) + sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(first, second) for first, _, second in (merge.partition(" ") for merge in MERGES.split("|"))]
    vocabulary += [first + second for first, second in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(vocabulary)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def random_tensors(config: ModelConfig, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Random weights, scaled so that activations keep their size and logits differ clearly: greedy text is not one
    repeated token."""
    generator = torch.Generator().manual_seed(seed)
    dtype = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[config.dtype]
    for name, shape in tensor_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        scaled = 1 + 0.1 * values if len(shape) == 1 else values / shape[-1] ** 0.5
        yield name, (values if "embed_tokens" in name else scaled).to(dtype)


def write_weights(directory: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, directory / WHOLE, metadata={"format": "pt"})
        return
    places = {name: f"model-{number % shards + 1:05}-of-{shards:05}.safetensors" for number, name in enumerate(tensors)}
    for file in dict.fromkeys(places.values()):
        part = {name: tensor for name, tensor in tensors.items() if places[name] == file}
        save_file(part, directory / file, metadata={"format": "pt"})
    total = sum(tensor.nbytes for tensor in tensors.values())
    write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False), encoding="utf-8")
