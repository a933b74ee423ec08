# SPDX-License-Identifier: Apache-2.0
"""The model configuration that a GGUF file's metadata states. No torch."""

from __future__ import annotations

from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.gguf_header import GgufHeader, read_header
from pontil.runtime.loaders.llama_layout import check_architecture, checked
from pontil.runtime.models.config import ModelConfig

EMBEDDING, OUTPUT, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
ALL_FLOAT32 = 0
"""The value of general.file_type for a file in which nothing is quantized or rounded."""


def read_gguf_config(path: Path) -> ModelConfig:
    return gguf_config(read_header(path))


def gguf_config(header: GgufHeader) -> ModelConfig:
    """Raises ModelError for another architecture, a feature of Llama that is not there yet, or a missing key."""
    architecture = header.text("general.architecture")
    check_architecture(architecture)
    assert architecture is not None
    refuse_unsupported(header, architecture)
    hidden = required(header, f"{architecture}.embedding_length")
    heads = required(header, f"{architecture}.attention.head_count")
    head_dim = header.integer(f"{architecture}.attention.key_length") or hidden // max(heads, 1)
    refuse_partial_rotary(header, architecture, head_dim)
    return checked(
        ModelConfig(
            architecture=architecture,
            vocab_size=vocab_size(header),
            hidden_size=hidden,
            intermediate_size=required(header, f"{architecture}.feed_forward_length"),
            num_layers=required(header, f"{architecture}.block_count"),
            num_heads=heads,
            num_kv_heads=optional(header, f"{architecture}.attention.head_count_kv", heads),
            head_dim=head_dim,
            max_model_len=required(header, f"{architecture}.context_length"),
            rms_norm_eps=decimal(header.number(f"{architecture}.attention.layer_norm_rms_epsilon"), 1e-5),
            rope_theta=decimal(header.number(f"{architecture}.rope.freq_base"), 10000.0),
            tie_word_embeddings=OUTPUT not in header.tensors,
            dtype="float32" if header.integer("general.file_type") == ALL_FLOAT32 else "bfloat16",
            eos_token_ids=end_ids(header),
            bos_token_id=header.integer("tokenizer.ggml.bos_token_id"),
        )
    )


def required(header: GgufHeader, key: str) -> int:
    value = header.integer(key)
    if value is None:
        raise ModelError(f"the GGUF file does not state {key} as one number: it cannot be run")
    return value


def optional(header: GgufHeader, key: str, default: int) -> int:
    return required(header, key) if key in header.metadata else default


def decimal(value: float | None, default: float) -> float:
    """GGUF keeps these as float32: the nearest short decimal is the number that the model's authors wrote."""
    return default if value is None else float(f"{value:.7g}")


def vocab_size(header: GgufHeader) -> int:
    """The embedding's own rows, which may be more than the vocabulary has entries."""
    embedding = header.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"the GGUF file has no tensor {EMBEDDING}: it holds no whole model")
    return embedding.shape[0]


def end_ids(header: GgufHeader) -> tuple[int, ...]:
    ids = [header.integer(f"tokenizer.ggml.{key}") for key in END_KEYS]
    return tuple(dict.fromkeys(number for number in ids if number is not None))


def refuse_unsupported(header: GgufHeader, architecture: str) -> None:
    scaling = header.text(f"{architecture}.rope.scaling.type") or "none"
    if scaling != "none":
        raise ModelError(f"the model scales its rotary positions ({scaling}): this version runs unscaled ones only")
    if ROPE_FACTORS in header.tensors:
        raise ModelError("the model scales its rotary positions (llama3): this version runs unscaled ones only")
    if header.integer(f"{architecture}.expert_count"):
        raise ModelError("the model is a mixture of experts: this version runs dense ones only")
    if (header.integer("split.count") or 1) > 1:
        raise ModelError("the GGUF file is one of several parts: merge them with llama-gguf-split --merge first")


def refuse_partial_rotary(header: GgufHeader, architecture: str, head_dim: int) -> None:
    for key in ("rope.dimension_count", "attention.value_length"):
        size = header.integer(f"{architecture}.{key}")
        if size not in (None, head_dim):
            raise ModelError(f"the model's {key} is {size}, its heads have {head_dim}: this version needs them equal")
