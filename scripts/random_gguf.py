# SPDX-License-Identifier: Apache-2.0
"""A GGUF file of random weights in the sizes of a large model, to measure what no package has.

    python scripts/random_gguf.py SHAPE FILE [--layers N] [--hole]

SHAPE is 1.5b (Qwen2.5 1.5B), 8b (Llama 3.1 8B) or 30b-a3b (Qwen3 30B-A3B), with the types that Q4_K_M gives each
tensor, and as many merges as tokens; --layers takes the first N layers, 12 being a quarter of 30b-a3b. --hole leaves
out the data and most of the vocabulary, so that the file takes no room: only what reads the sizes of tensors has a use
for it. Scales are such that weights have a standard deviation near 0.02.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np

F32, Q4_K, Q6_K = (gguf.GGMLQuantizationType[name] for name in ("F32", "Q4_K", "Q6_K"))
SPREAD = 0.02
# Standard deviations of scale × number (Q4_K: less 7.5 × the other scale) over uniform bytes.
Q4_K_SPREAD, Q6_K_SPREAD = 257.0, 1369.0
LEAST_VOCABULARY = 258
# Bytes that are drawn at a time.
PIECE = 1 << 24

Tensors = dict[str, tuple[tuple[int, ...], gguf.GGMLQuantizationType]]


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder; those of `experts` are 0 for a dense one. Of a `tied` one the embedding is the head."""

    architecture: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int
    rope_base: float
    experts: int = 0
    experts_used: int = 0
    tied: bool = False
    context: int = 131072

    @property
    def has_biases(self) -> bool:
        return self.architecture == "qwen2"

    def tensors(self, layers: int) -> Tensors:
        tensors: Tensors = {
            "token_embd.weight": ((self.vocabulary, self.hidden), Q6_K if self.tied else Q4_K),
            "output_norm.weight": ((self.hidden,), F32),
        }
        if not self.tied:
            tensors["output.weight"] = (self.vocabulary, self.hidden), Q6_K
        if self.architecture == "llama":
            tensors["rope_freqs.weight"] = ((HEAD // 2,), F32)
        for layer in range(layers):
            eighth = layers // 8
            is_finer = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
            for name, one in self.layer(Q6_K if is_finer else Q4_K).items():
                tensors[f"blk.{layer}.{name}.weight"] = one
            for name, rows in zip("qkv", (self.heads, self.kv_heads, self.kv_heads), strict=True):
                if self.has_biases:
                    tensors[f"blk.{layer}.attn_{name}.bias"] = (rows * HEAD,), F32
        return tensors

    def layer(self, finer: gguf.GGMLQuantizationType) -> Tensors:
        queries, keys, hidden = self.heads * HEAD, self.kv_heads * HEAD, self.hidden
        tensors: Tensors = {
            "attn_norm": ((hidden,), F32), "ffn_norm": ((hidden,), F32), "attn_q": ((queries, hidden), Q4_K),
            "attn_k": ((keys, hidden), Q4_K), "attn_v": ((keys, hidden), finer),
            "attn_output": ((hidden, queries), Q4_K),
        }  # fmt: skip
        experts = (self.experts,) if self.experts else ()
        suffix = "_exps" if self.experts else ""
        for name, shape, kind in (
            ("gate", (self.inner, hidden), Q4_K), ("up", (self.inner, hidden), Q4_K),
            ("down", (hidden, self.inner), finer),
        ):  # fmt: skip
            tensors[f"ffn_{name}{suffix}"] = (*experts, *shape), kind
        if self.experts:
            tensors |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), ((HEAD,), F32))
            tensors["ffn_gate_inp"] = (self.experts, hidden), F32
        return tensors


HEAD = 128
SHAPES = {
    "1.5b": ModelShape("qwen2", 28, 1536, 8960, 12, 2, 151936, 1000000.0, tied=True, context=32768),
    "8b": ModelShape("llama", 32, 4096, 14336, 32, 8, 128256, 500000.0),
    "30b-a3b": ModelShape("qwen3moe", 48, 2048, 768, 32, 4, 151936, 1000000.0, 128, 8),
}


def write_random_gguf(path: Path, shape: ModelShape, layers: int | None = None, has_data: bool = True) -> Path:
    """Write a file of the first `layers` layers, of all by default; without data it has a hole."""
    layers = layers or shape.layers
    writer = gguf.GGUFWriter(path, shape.architecture)
    add_sizes(writer, shape, layers)
    add_vocabulary(writer, shape.vocabulary if has_data else LEAST_VOCABULARY)
    tensors = shape.tensors(layers)
    for name, (sizes, kind) in tensors.items():
        dtype = np.dtype(np.float32 if kind == F32 else np.uint8)
        raw = None if kind == F32 else kind
        writer.add_tensor_info(name, stored_shape(sizes, kind), dtype, stored_size(sizes, kind), raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    generator = np.random.default_rng(1)
    with path.open("r+b") as file:
        place = aligned(file.seek(0, 2))
        for sizes, kind in tensors.values():
            file.seek(place)
            if has_data:
                write_tensor(file, sizes, kind, generator)
            place = aligned(place + stored_size(sizes, kind))
        file.truncate(place)
    return path


def aligned(place: int) -> int:
    return place + -place % gguf.GGUF_DEFAULT_ALIGNMENT


def stored_shape(sizes: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> tuple[int, ...]:
    return sizes if kind == F32 else tuple(gguf.quant_shape_to_byte_shape(sizes, kind))


def stored_size(sizes: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> int:
    return int(np.prod(stored_shape(sizes, kind))) * (4 if kind == F32 else 1)


def add_sizes(writer: gguf.GGUFWriter, shape: ModelShape, layers: int) -> None:
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_K_M))
    writer.add_block_count(layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)
        writer.add_expert_feed_forward_length(shape.inner)


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Add an end, the 256 bytes, and texts of two and of three of them, each with the merge that makes it."""
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + number) for number in range(256 - len(letters))]
    merges = list(islice(merges_of(letters, letters[letters.index("a") :]), size - 1 - len(letters)))
    tokens = ["<|end|>", *letters, *(merge.replace(" ", "") for merge in merges)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (size - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def merges_of(letters: Sequence[str], begins: Sequence[str]) -> Iterator[str]:
    for first, second in product(begins, letters):
        yield f"{first} {second}"
    for first, second, third in product(begins, letters, letters):
        yield f"{first}{second} {third}"


def write_tensor(
    file: BinaryIO, sizes: tuple[int, ...], kind: gguf.GGMLQuantizationType, generator: np.random.Generator
) -> None:
    """Write ones for a norm, random numbers for a router, and random blocks for any other matrix."""
    if kind == F32:
        numbers = np.ones(sizes) if len(sizes) == 1 else generator.normal(0.0, SPREAD, sizes)
        file.write(numbers.astype(np.float32).tobytes())
        return
    size = stored_size(sizes, kind)
    block = gguf.GGML_QUANT_SIZES[kind][1]
    while size > 0:
        blocks = generator.integers(256, size=(min(size, PIECE) // block, block), dtype=np.uint8)
        if kind == Q4_K:
            scale = SPREAD / Q4_K_SPREAD
            blocks[:, :4] = np.array([scale, 7.5 * scale], np.float16).view(np.uint8)
        else:
            blocks[:, -2:] = np.array([SPREAD / Q6_K_SPREAD], np.float16).view(np.uint8)
        file.write(blocks.tobytes())
        size -= blocks.nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--hole", action="store_true")
    given = parser.parse_args()
    path = write_random_gguf(given.file, SHAPES[given.shape], given.layers, not given.hole)
    print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
