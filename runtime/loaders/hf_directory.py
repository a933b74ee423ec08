# SPDX-License-Identifier: Apache-2.0
"""Weights of a Hugging Face directory: model.safetensors, or shards listed in model.safetensors.index.json."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.fingerprint import fingerprint
from pontil.runtime.loaders.hf_config import read_hf_config
from pontil.runtime.loaders.hf_fields import read_json
from pontil.runtime.loaders.layout import Shape, check_shapes, tensor_shapes
from pontil.runtime.models.config import ModelConfig

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class HfCheckpoint:
    """`places` names the file of each tensor the model uses."""

    config: ModelConfig
    fingerprint: str
    places: dict[str, Path]

    @classmethod
    def open(cls, directory: Path) -> HfCheckpoint:
        config = read_hf_config(directory)
        files = shards(directory)
        shapes: dict[str, Shape] = {}
        found: dict[str, Path] = {}
        for path in files:
            with opened(path) as file:
                names = file.keys()
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
                found |= dict.fromkeys(names, path)
        check_shapes(config, shapes, directory)
        return cls(config, fingerprint(config, files), {name: found[name] for name in tensor_shapes(config)})

    def tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        for path in dict.fromkeys(self.places.values()):
            with opened(path) as file:
                for name in (name for name, place in self.places.items() if place == path):
                    yield name, file.get_tensor(name)


def shards(directory: Path) -> list[Path]:
    """The files of the model in the order of their names."""
    if not (directory / INDEX).is_file():
        if (directory / WHOLE).is_file():
            return [directory / WHOLE]
        raise ModelError(f"{directory} has neither {WHOLE} nor {INDEX}: fetch the model's safetensors files")
    places = read_json(directory / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ModelError(f"{directory / INDEX} has no weight_map: fetch the model again")
    for name in sorted(set(places.values())):
        if Path(name).name != name or not (directory / name).is_file():
            raise ModelError(f"{directory} lacks the shard {name}: fetch the model again")
    return [directory / name for name in sorted(set(places.values()))]


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file. Raises ModelError, also for what goes wrong while it is read."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged or cut off ({error}): fetch it again") from error
