# SPDX-License-Identifier: Apache-2.0
"""A text encoder in a Hugging Face directory, and what its files say is made of its rows: the pooling that
sentence-transformers' files state beside it, or the layers that score a pair of texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.architectures import SIZES, check_range, check_size
from pontil.runtime.loaders.facts.fingerprint import fingerprint
from pontil.runtime.loaders.facts.json_fields import integer, layer_count, number, read_json, short
from pontil.runtime.loaders.facts.shards import shards
from pontil.runtime.loaders.hf.directory import check_kinds
from pontil.runtime.loaders.hf.encoder_families import ROBERTA, SCORING, family_of, score_head
from pontil.runtime.loaders.hf.tensor_files import TensorLocation, opened, stored_tensors
from pontil.runtime.models.encoder_config import ROBERTA_PADDING, EncoderConfig, Pooling, ScoreHead

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
# Tensors beside the encoder: heads that pooling replaces, and numbers that repeat the configuration.
BESIDE = (
    "pooler.",
    "cls.",
    "lm_head.",
    "vocab_",
    "embeddings.position_ids",
    "embeddings.token_type_ids",
)
POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_cls_token": "cls",
}


def read_encoder_config(directory: Path) -> EncoderConfig:
    """Read the configuration. Raises ModelError for one that this version cannot compute."""
    data = read_json(directory / "config.json")
    family = family_of(data)
    data = family.usual(data)
    positions = data.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise ModelError(f"the model has positions of the type {short(positions)}: this version runs 'absolute' only")
    activation = data.get("hidden_act")
    if activation not in ACTIVATIONS:
        raise ModelError(f"the model's hidden_act is {short(activation)}: this version runs {', '.join(ACTIVATIONS)}")
    if family is ROBERTA and data.get("pad_token_id", ROBERTA_PADDING) != ROBERTA_PADDING:
        raise ModelError(f"the model's pad_token_id is {short(data['pad_token_id'])}: this version runs models with 1")
    table = integer(data, "max_position_embeddings")
    config = EncoderConfig(
        architecture=family.architecture,
        vocab_size=integer(data, "vocab_size"),
        hidden_size=integer(data, "hidden_size"),
        intermediate_size=integer(data, "intermediate_size"),
        num_layers=layer_count(data),
        num_heads=integer(data, "num_attention_heads"),
        max_positions=table,
        max_model_len=longest(directory, table - (ROBERTA_PADDING + 1) * (family is ROBERTA)),
        type_vocab_size=integer(data, "type_vocab_size", 2) if family.kinds else 0,
        layer_norm_eps=number(data, "layer_norm_eps", 1e-12),
        activation=str(activation),
    )
    return checked(config)


def checked(config: EncoderConfig) -> EncoderConfig:
    """Return `config` itself. Raises ModelError for sizes that no model can have."""
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "max_model_len"):
        check_size(f"the model's {name}", getattr(config, name), SIZES[name])
    check_range("the model's layer_norm_eps", config.layer_norm_eps, 0.0, 1.0)
    if config.type_vocab_size < 0 or config.hidden_size % config.num_heads:
        raise ModelError(f"{config.num_heads} heads cannot share {config.hidden_size} numbers evenly: fix config.json")
    return config


def longest(directory: Path, table: int) -> int:
    """Return the longest text in tokens: sentence-transformers' limit where it states one, never above the table."""
    path = directory / "sentence_bert_config.json"
    stated = read_json(path).get("max_seq_length") if path.is_file() else None
    return min(table, stated) if type(stated) is int and stated > 0 else table


def stated_pooling(path: Path) -> Pooling | None:
    """Return the pooling that the model's files state; None where they state none. Raises ModelError for one that this
    version does not have."""
    file = path / "1_Pooling" / "config.json"
    if not path.is_dir() or not file.is_file():
        return None
    modes = [name for name, value in read_json(file).items() if name.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        known = ", ".join(POOLINGS)
        raise ModelError(f"the model pools by {', '.join(modes) or 'nothing'}: this version has one of {known}")
    return POOLINGS[modes[0]]


@dataclass(frozen=True, slots=True)
class EncoderCheckpoint:
    """The weights of an encoder. `places` has the location of each tensor, in reading order. One with a `head` scores
    pairs."""

    config: EncoderConfig
    fingerprint: str
    places: dict[str, TensorLocation]
    head: ScoreHead | None = None

    @classmethod
    def open(cls, directory: Path, scores: bool = False) -> EncoderCheckpoint:
        """Open a directory, as a model that embeds or one that `scores` pairs. Raises ModelError for files that are
        missing or damaged, or of a model for the other."""
        config, files = read_encoder_config(directory), shards(directory)
        data = read_json(directory / "config.json")
        family, head = family_of(data), score_head(data)
        if scores and head is None:
            raise ModelError(
                f"{directory} embeds texts and scores none: name it as --embedding-model, and as --reranking-model one "
                f"with {SCORING} among its architectures"
            )
        if head is not None and not scores:
            raise ModelError(f"{directory} scores pairs of texts and embeds none: name it as --reranking-model")
        beside = tuple(name for name in BESIDE if head is None or not head.dense.startswith(name))
        places: dict[str, TensorLocation] = {}
        for path in files:
            for stored, (_, kind) in stored_tensors(path).items():
                name = family.usual_name(stored)
                if not name.startswith(beside):
                    places[name] = TensorLocation(path, stored, kind)
        check_kinds(places, directory)
        return cls(config, fingerprint(config, files, "" if head is None else head.fingerprint()), places, head)

    @property
    def files(self) -> list[Path]:
        return list(dict.fromkeys(place.path for place in self.places.values()))

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path in self.files:
            with opened(path) as file:
                for name, place in self.places.items():
                    if place.path == path:
                        yield name, place.read(file)
