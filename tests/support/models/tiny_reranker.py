# SPDX-License-Identifier: Apache-2.0
"""Tiny random models that score pairs of texts as Hugging Face directories, made and read by transformers."""

import json
from pathlib import Path
from typing import Any

import torch
from tiny_bert import SPECIAL, word_pieces
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForSequenceClassification, PretrainedConfig, Qwen3Config, Qwen3ForCausalLM
from transformers import Qwen3ForSequenceClassification as Qwen3Classifier

SIZES = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3}
DISTIL_SIZES = {"dim": 48, "hidden_dim": 96, "n_layers": 2, "n_heads": 3}
POSITIONS = 64
# RoBERTa's ids of the same special tokens.
ROBERTA = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "type_vocab_size": 1}
QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KINDS = ("bert", "roberta", "xlm-roberta", "distilbert")


def write_tiny_reranker(directory: Path, kind: str = "bert", *, seed: int = 0, **config: Any) -> Path:
    """Write the model and return its directory. `config` are fields of config.json."""
    about, tokenizer = configured(kind, **{"num_labels": 1} | config)
    torch.manual_seed(seed)
    AutoModelForSequenceClassification.from_config(about).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def configured(kind: str, **config: Any) -> tuple[PretrainedConfig, Tokenizer]:
    """Return the configuration of a tiny encoder of a kind, and its tokenizer."""
    tokenizer, about = word_pieces(), dict[str, Any](DISTIL_SIZES if kind == "distilbert" else SIZES)
    if "roberta" in kind:
        about |= ROBERTA
        like_roberta(tokenizer)
    about |= {
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": POSITIONS + 2 * ("roberta" in kind),
        "initializer_range": 0.4,
    }
    return AutoConfig.for_model(kind, **about | config), tokenizer


def write_tokenizer(directory: Path, kind: str = "bert") -> Path:
    """Write what a proxy reads of a cross-encoder."""
    (directory / "config.json").write_text(json.dumps({"model_type": kind}))
    word_pieces().save(str(directory / "tokenizer.json"))
    return directory


def write_judging_tokenizer(directory: Path) -> Path:
    """Write what a proxy reads of a decoder that judges."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    judging_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def like_roberta(tokenizer: Tokenizer) -> None:
    """Have it put twice the same token between two texts, and tell them apart by nothing else."""
    ends = [(token, tokenizer.token_to_id(token)) for token in SPECIAL[2:]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] [SEP] $B [SEP]", special_tokens=ends
    )


def judging_tokenizer() -> Tokenizer:
    """A tokenizer with the pieces of Qwen3's: of bytes, and merges across what a space or a sign joins."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("?", "Ċ"), (".", "Ċ"), ("e", "s"), ("y", "es"), ("n", "o"), ("<", "D")]
    words = [*letters, *("".join(merge) for merge in merges)]
    made = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return made


def write_tiny_judge(directory: Path, *, classifier: bool = False, tied: bool = True) -> Path:
    """Write a decoder like Qwen3-Reranker, or one that was converted to a classifier, and return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = judging_tokenizer()
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        num_labels=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    (Qwen3Classifier if classifier else Qwen3ForCausalLM)(config).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory
