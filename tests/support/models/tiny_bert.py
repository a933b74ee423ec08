# SPDX-License-Identifier: Apache-2.0
"""A tiny random BERT as a Hugging Face directory, with a word-piece tokenizer. transformers reads it too."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?"
# Whole words beside the characters.
WORDS = ("the", "sea", "keeper", "night", "lamp")
SIZES = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3,
    "max_position_embeddings": 64, "type_vocab_size": 2,
}  # fmt: skip


def write_tiny_bert(directory: Path, *, pooling: str = "mean_tokens", seed: int = 0, **config: Any) -> Path:
    """Write the model and return its directory. `config` are fields of config.json; equal arguments write equal
    weights."""
    (directory / "1_Pooling").mkdir(parents=True, exist_ok=True)
    tokenizer = word_pieces()
    sizes = SIZES | {"vocab_size": tokenizer.get_vocab_size()}
    about = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, **sizes, **config}
    tokenizer.save(str(directory / "tokenizer.json"))
    texts = {
        "config.json": about,
        "1_Pooling/config.json": {f"pooling_mode_{pooling}": True, "word_embedding_dimension": about["hidden_size"]},
        "sentence_bert_config.json": {"max_seq_length": 32},
    }
    for name, content in texts.items():
        (directory / name).write_text(json.dumps(content))
    save_file(weights(about, seed), str(directory / "model.safetensors"))
    return directory


def word_pieces() -> Tokenizer:
    pieces = [*SPECIAL, *CHARACTERS, *(f"##{one}" for one in CHARACTERS), *WORDS]
    made = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, made.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(list(SPECIAL))
    return made


def weights(about: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = about["hidden_size"], about["intermediate_size"]

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    def norm(name: str) -> dict[str, torch.Tensor]:
        return {f"{name}.weight": 1 + drawn(hidden), f"{name}.bias": drawn(hidden)}

    def dense(name: str, outputs: int, inputs: int) -> dict[str, torch.Tensor]:
        return {f"{name}.weight": drawn(outputs, inputs), f"{name}.bias": drawn(outputs)}

    made = {
        "embeddings.word_embeddings.weight": drawn(about["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": drawn(about["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": drawn(about["type_vocab_size"], hidden),
        **norm("embeddings.LayerNorm"),
        # Pooling takes its place.
        **dense("pooler.dense", hidden, hidden),
    }
    for layer in range(about["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            made |= dense(f"{prefix}attention.self.{part}", hidden, hidden)
        made |= dense(f"{prefix}attention.output.dense", hidden, hidden)
        made |= norm(f"{prefix}attention.output.LayerNorm")
        made |= dense(f"{prefix}intermediate.dense", inner, hidden) | dense(f"{prefix}output.dense", hidden, inner)
        made |= norm(f"{prefix}output.LayerNorm")
    return made
