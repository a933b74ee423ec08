# SPDX-License-Identifier: Apache-2.0
"""The parts of a model, each tried alone from its files, so that everything that is missing is told at once. Of weights
only headers are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pontil.runtime.chat.chat_template import ChatTemplate
from pontil.runtime.errors import ModelError, PontilError
from pontil.runtime.foundation.draft_names import MTP
from pontil.runtime.loaders.builtin import local_model, source_of, unknown_model
from pontil.runtime.loaders.checkpoint import Checkpoint, open_checkpoint, open_classifier
from pontil.runtime.loaders.config import is_encoder, read_config
from pontil.runtime.loaders.facts.adapter_facts import check_adapter
from pontil.runtime.loaders.facts.safetensors_header import header_tensors
from pontil.runtime.loaders.facts.shards import shards
from pontil.runtime.loaders.hf.encoder_directory import EncoderCheckpoint
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.partition import check_states
from pontil.runtime.probe.footprint import MemoryDemand
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from pontil.runtime.worker.start.draft_pair import check_pair

One = TypeVar("One")
# The row by which a decoder scores pairs of texts.
SCORE = "score.weight"


@dataclass(slots=True)
class PartTrials:
    """The faults of parts that were tried, each a sentence; one that two parts have is told once."""

    faults: dict[str, str] = field(default_factory=dict)

    def of(self, part: str, attempt: Callable[[], One]) -> One | None:
        """Return what the attempt returns, or note why it failed."""
        try:
            return attempt()
        except (PontilError, OSError) as error:
            if str(error) not in self.faults.values():
                self.faults[part] = str(error)
            return None


@dataclass(frozen=True, slots=True)
class TriedDecoder:
    """The parts that were found of a model that generates."""

    config: ModelConfig | None
    checkpoint: Checkpoint | None
    tokenizer: Tokenizer | None
    template: ChatTemplate | None


def try_decoder(path: Path, trials: PartTrials) -> TriedDecoder:
    """Try the parts of a model that generates."""
    config = trials.of("model", lambda: decoder_config(path))
    # Without a configuration nobody knows which tensors there should be, but files may be damaged too.
    if config is None:
        checkpoint = trials.of("weights", lambda: check_headers(path))
    else:
        checkpoint = trials.of("weights", lambda: open_checkpoint(path))
    tokenizer = trials.of("tokenizer", lambda: load_tokenizer(path))
    template = None if tokenizer is None else ChatTemplate(tokenizer.chat_template, tokenizer.roles)
    return TriedDecoder(config, checkpoint, tokenizer, template)


def decoder_config(path: Path) -> ModelConfig:
    if is_encoder(path):
        raise ModelError(
            f"{path.name} is an encoder, which generates nothing: name it as --embedding-model or --reranking-model"
        )
    return read_config(path)


def check_headers(path: Path) -> None:
    """Raise ModelError for files of a directory that are missing or damaged. A GGUF file is one with its
    configuration."""
    for file in shards(path) if path.is_dir() else ():
        header_tensors(file)


def try_demand(path: Path, config: ModelConfig, demand: MemoryDemand, trials: PartTrials) -> None:
    """Try whether workers can be as the launch has them."""
    for layout, worker in zip(demand.layouts, demand.workers, strict=True):
        trials.of("ranks", partial(layout.check, config))
        for device in worker:
            trials.of("model", partial(check_states, config, device, demand.speculative_model is not None))
    asked = demand.max_model_len
    if asked is not None and asked > config.max_model_len:
        trials.faults["context"] = (
            f"--max-model-len {asked} is more than the {config.max_model_len} this model was made for: lower it"
        )


def try_adapters(config: ModelConfig, adapters: Mapping[str, str], trials: PartTrials) -> None:
    for name, directory in adapters.items():
        source = f"the adapter {name}"
        trials.of(source, partial(check_adapter, Path(directory), config, source))


def try_draft(path: Path, name: str, cache: Path, trials: PartTrials) -> str | None:
    """Try the model that guesses; return its name if it is not here and can be fetched."""
    place = Path(MTP) if name == MTP else local_model(name, cache)
    if place is None:
        if source_of(name) is not None:
            return name
        trials.faults["draft model"] = unknown_model(name)
    else:
        trials.of("draft model", lambda: check_pair(path, place))
    return None


def try_text_model(path: Path, scores: bool, trials: PartTrials) -> None:
    """Try the parts of a model that embeds texts, or scores pairs of them."""
    encodes = trials.of("model", lambda: is_encoder(path))
    if encodes is None:
        trials.of("weights", lambda: check_headers(path))
    elif encodes:
        trials.of("weights", lambda: EncoderCheckpoint.open(path, scores))
    else:
        trials.of("weights", lambda: (open_classifier(path, SCORE) if scores else None) or open_checkpoint(path))
    trials.of("tokenizer", lambda: load_tokenizer(path))


def shortened(config: ModelConfig, demand: MemoryDemand) -> ModelConfig:
    """Return the configuration with the context that the launch gives it."""
    return replace(config, max_model_len=min(config.max_model_len, demand.max_model_len or config.max_model_len))
