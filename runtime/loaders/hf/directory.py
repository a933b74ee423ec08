# SPDX-License-Identifier: Apache-2.0
"""Weights of a Hugging Face directory: model.safetensors, or shards listed in model.safetensors.index.json."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.fingerprint import fingerprint
from pontil.runtime.loaders.facts.json_fields import read_json
from pontil.runtime.loaders.facts.layout import Shape, check_shapes, tensor_shapes
from pontil.runtime.loaders.facts.quantization import FLOAT8, FP4_PARTS, SCALE, with_scales
from pontil.runtime.loaders.hf.config import read_hf_config
from pontil.runtime.loaders.hf.fused_experts import FusedPart, parts_of
from pontil.runtime.models.architectures import ARCHITECTURES, Architecture
from pontil.runtime.models.config import ModelConfig

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
READABLE = ("F32", "F16", "BF16")
"""Types of numbers that are read as they are. Others need scales, which each of their formats stores elsewhere."""


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """The file that holds a tensor, its name and type there, and its part of that tensor, if it is not the whole."""

    path: Path
    stored_name: str
    kind: str
    part: FusedPart | None = None

    def read(self, file: Any) -> torch.Tensor:
        """Read the tensor from the opened file."""
        if self.part is None:
            whole: torch.Tensor = file.get_tensor(self.stored_name)
            return whole
        part, stored = self.part, file.get_slice(self.stored_name)
        if part.expert is None:
            rows: torch.Tensor = stored[part.start : part.end]
            return rows
        if part.transposed or part.step > 1:
            one: torch.Tensor = stored[part.expert : part.expert + 1][0]
            return (one.T if part.transposed else one)[part.start : part.end : part.step].contiguous()
        cut: torch.Tensor = stored[part.expert : part.expert + 1, part.start : part.end]
        return cut[0]


@dataclass(frozen=True, slots=True)
class HfCheckpoint:
    """`places` has the location of each tensor that the model uses, and `left_out` the number of those of each other
    part of a model of several, by the beginning of their names."""

    config: ModelConfig
    fingerprint: str
    places: dict[str, TensorLocation]
    left_out: dict[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, directory: Path, config: ModelConfig | None = None) -> HfCheckpoint:
        """Open the text model, or the part of a model of several whose `config` this is."""
        config, files = config or read_hf_config(directory), shards(directory)
        stored = [(path, name, *kept) for path in files for name, kept in stored_tensors(path).items()]
        found = {name: place for one in stored for name, place in located(config, *one)}
        others = ARCHITECTURES[config.architecture].others
        left_out = Counter(part for _, name, _, _ in stored for part in others if name.startswith(part))
        shapes = {name: shape for name, (shape, _) in found.items()}
        check_shapes(config, shapes, directory)
        wanted = with_scales(tensor_shapes(config), shapes, config.weight_block)
        places = {name: found[name][1] for name in wanted}
        check_kinds(places, directory, config.weight_block is not None)
        return cls(config, fingerprint(config, files), places, dict(left_out))

    @property
    def files(self) -> list[Path]:
        return list(dict.fromkeys(place.path for place in self.places.values()))

    def tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        for path in dict.fromkeys(place.path for place in self.places.values()):
            with opened(path) as file:
                for name, place in self.places.items():
                    if place.path == path:
                        yield name, place.read(file)


def located(
    config: ModelConfig, path: Path, stored: str, shape: Shape, kind: str
) -> Iterator[tuple[str, tuple[Shape, TensorLocation]]]:
    """The model's tensors that a stored one holds, by their usual names: none if it is of another part of a model of
    several."""
    architecture = ARCHITECTURES[config.architecture]
    name = usual_name(architecture, stored)
    if name is None:
        return
    parts = parts_of(name, shape, config.experts.count if config.experts else 0, architecture.fused_experts)
    for part in parts:
        yield part.name, (part.shape, TensorLocation(path, stored, kind, part))
    if not parts:
        yield name, (shape, TensorLocation(path, stored, kind))


def usual_name(architecture: Architecture, stored: str) -> str | None:
    """The name that a tensor has in a model of one part, or None if it is of another part."""
    if stored.startswith(architecture.others):
        return None
    name = stored.removeprefix(architecture.prefix)
    for start, usual in architecture.renamed.items():
        if name.startswith(start):
            return usual + name.removeprefix(start)
    for part, usual in architecture.replaced.items():
        name = name.replace(part, usual)
    return name


def stored_tensors(path: Path) -> dict[str, tuple[Shape, str]]:
    """Shape and type of each tensor in the file."""
    with opened(path) as file:
        names = file.keys()
        slices = {name: file.get_slice(name) for name in names}
        return {name: (tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()}


def check_kinds(places: dict[str, TensorLocation], source: object, scaled: bool = False) -> None:
    """Raise ModelError for a tensor whose type of numbers is not supported. Floats of 8 bits are, if the weights are
    `scaled`."""
    for name, place in places.items():
        if scaled and (place.kind == FLOAT8) != (name + SCALE in places):
            raise ModelError(
                f"{source} stores the tensor {name} as {place.kind}: floats of 8 bits, and only these, need a tensor "
                f"{name + SCALE} with their scales: fetch the model again"
            )
        fours = scaled and name.endswith(FP4_PARTS) and place.kind == "U8"
        if not fours and place.kind not in (READABLE + (FLOAT8,) * scaled):
            raise ModelError(
                f"{source} stores the tensor {name} as {place.kind}: this version reads {', '.join(READABLE)} there, "
                "and quantized weights from GGUF files"
            )


def shards(directory: Path) -> list[Path]:
    """The model's files in the order of their names."""
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
    """Open a safetensors file. Raises ModelError, also for errors while it is read."""
    if not os.access(path, os.R_OK):
        raise ModelError(f"{path} may not be read by the user who runs this: give them the right to (chmod a+r)")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged or cut off ({error}): fetch it again") from error
