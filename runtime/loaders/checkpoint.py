# SPDX-License-Identifier: Apache-2.0
"""The interface of weights on disk in any format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import read_json
from pontil.runtime.loaders.facts.weight_forms import EMBEDDING
from pontil.runtime.loaders.gguf.file import GgufCheckpoint
from pontil.runtime.loaders.hf.config import read_hf_config
from pontil.runtime.loaders.hf.directory import HfCheckpoint
from pontil.runtime.loaders.hf.encoder_families import check_labels, classifies
from pontil.runtime.models.config import ModelConfig

# One that is tied to the embedding has numbers beside its rows.
HEAD = re.compile(rf"lm_head\..+|{re.escape(EMBEDDING)}\.(?!blocks).+")


class Checkpoint(Protocol):
    """A model that was found complete: every tensor of its architecture is there in the right shape.

    `tensors` may be called again and reads the files anew each time; it yields names as Hugging Face has them
    (`lm_head.weight` only when it is not tied), on the CPU, one tensor in memory at a time. Quantized numbers become
    `dtype`, those of the configuration when None; unquantized ones may keep their type. It raises ModelError. `places`
    has an item for each of them, and `files` hold them all.

    Where a checkpoint `has_levels`, `levels` yields whole numbers with scales and offsets in the place of a weight
    that it holds so, and maybe the rows of an embedding as they are stored. `unpacked_types` tell of weights of less
    than 16 bits that become `dtype` there too. They are those of a CPU's kernels, or of the same checkpoint
    `for_device`. One that is `narrowed` has those tensors alone that a model of another configuration takes.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def files(self) -> Sequence[Path]: ...

    @property
    def places(self) -> Mapping[str, object]: ...

    @property
    def has_levels(self) -> bool: ...

    @property
    def unpacked_types(self) -> Sequence[str]: ...

    def for_device(self) -> Checkpoint: ...

    def narrowed(self, config: ModelConfig) -> Checkpoint: ...

    def tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]: ...

    def levels(
        self, dtype: torch.dtype | None = None, stored_rows: bool = False
    ) -> Iterator[tuple[str, torch.Tensor]]: ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint. Raises ModelError for files that are missing, damaged or of a model that this version cannot
    run."""
    if path.is_dir():
        return HfCheckpoint.open(path)
    if path.suffix == ".gguf":
        return GgufCheckpoint.open(path)
    raise ModelError(f"{path} is neither a directory with config.json nor a .gguf file")


def open_classifier(path: Path, row: str) -> Checkpoint | None:
    """Open a decoder that was made a classifier of one class, whose logit has the tensor `row`; return None for any
    other. Raises ModelError."""
    data = read_json(path / "config.json") if path.is_dir() else {}
    if not classifies(data):
        return None
    check_labels(data)
    # No head is read, so there need not be one.
    shape = replace(read_hf_config(path), tie_word_embeddings=True)
    return HfCheckpoint.open(path, shape, {row: (1, shape.hidden_size)})


def without_head(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield those of a checkpoint's tensors that a model takes which makes no logits."""
    return ((name, tensor) for name, tensor in tensors if HEAD.fullmatch(name) is None)
