# SPDX-License-Identifier: Apache-2.0
"""Weights of a Hugging Face directory: model.safetensors, or shards listed in model.safetensors.index.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.fingerprint import fingerprint
from pontil.runtime.loaders.facts.form_choice import WeightScheme
from pontil.runtime.loaders.facts.layout import check_shapes, tensor_shapes
from pontil.runtime.loaders.facts.shards import shards
from pontil.runtime.loaders.facts.weight_forms import Shape, WeightForm, part_of
from pontil.runtime.loaders.facts.weight_schemes import in_parts, is_beside, stored_forms
from pontil.runtime.loaders.hf.config import read_hf_config, read_weight_scheme
from pontil.runtime.loaders.hf.fused_experts import tensors_in
from pontil.runtime.loaders.hf.tensor_files import TensorLocation, opened, stored_tensors
from pontil.runtime.loaders.hf.weight_parts import WeightParts
from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.config import ModelConfig

Placed = tuple[Shape, TensorLocation]
NOTHING: Mapping[str, Shape] = MappingProxyType({})
READABLE = ("F32", "F16", "BF16")
"""Types of numbers that are read as they are. Others need scales, which each of their formats stores elsewhere."""
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class HfCheckpoint:
    """`places` has the location of each tensor that the model uses, and `left_out` the number of those of each other
    part of a model of several, by the beginning of their names. Levels are for the kernels of a CPU, or `on_device`."""

    config: ModelConfig
    fingerprint: str
    places: Mapping[str, TensorLocation | WeightParts]
    left_out: dict[str, int] = field(default_factory=dict)
    on_device: bool = False

    @classmethod
    def open(
        cls, directory: Path, config: ModelConfig | None = None, beside: Mapping[str, Shape] = NOTHING
    ) -> HfCheckpoint:
        """Open the text model, or the part of a model of several whose `config` this is, with tensors `beside` it."""
        scheme = read_weight_scheme(directory, None if config is None else config.architecture)
        config, files = config or read_hf_config(directory), shards(directory)
        stored = [(path, name, *kept) for path in files for name, kept in stored_tensors(path).items()]
        found = {name: place for one in stored for name, place in located(config, *one)}
        others = ARCHITECTURES[config.architecture].others
        left_out = Counter(part for _, name, _, _ in stored for part in others if name.startswith(part))
        check = partial(check_shapes, config, source=directory)
        shapes = tensor_shapes(config) | dict(beside)
        places = weight_places(shapes, found, scheme, check, directory)
        own = fingerprint(config, files, "" if scheme is None else repr(scheme))
        return cls(config, own, places, dict(left_out))

    @property
    def files(self) -> list[Path]:
        return list(dict.fromkeys(path for place in self.places.values() for path in place.paths))

    def for_device(self) -> HfCheckpoint:
        return replace(self, on_device=True)

    def narrowed(self, config: ModelConfig) -> HfCheckpoint:
        wanted = tensor_shapes(config)
        return replace(
            self, config=config, places={name: place for name, place in self.places.items() if name in wanted}
        )

    def counts(self, form: WeightForm) -> bool:
        """Return whether kernels multiply such numbers as they are."""
        return form.has_device_levels if self.on_device else form.has_levels

    @property
    def has_levels(self) -> bool:
        return any(isinstance(place, WeightParts) and self.counts(place.form) for place in self.places.values())

    @property
    def unpacked_types(self) -> list[str]:
        """Descriptions of the weights of less than 16 bits that `levels` has as numbers of the model's type."""
        forms = (place.form for place in self.places.values() if isinstance(place, WeightParts))
        kept = (form for form in forms if not self.counts(form) and not (self.on_device and form.stays))
        return list(dict.fromkeys(form.words for form in kept))

    def tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        wanted = dtype or DTYPES[self.config.dtype]
        for name, place, file in self.opened_places():
            if isinstance(place, TensorLocation):
                yield name, place.read(file)
            elif place.form.stays:
                yield from place.read_parts(file).items()
            else:
                yield name, place.read(file).dense(wanted)

    def levels(self, dtype: torch.dtype | None = None, stored_rows: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights like `tensors`, but for those that the kernels multiply as they are, `name.numbers` (int8,
        uint8 below 128, or float8), `name.scales` and `name.offsets` (float32) replace `name`. Floats of 4 bits have a
        `name.table` (int8), in which their numbers are places (uint8); for a device these are as the file has them, and
        so are blocks of floats of 8 bits, and inputs may stand in a `name.order` (int64)."""
        wanted = dtype or DTYPES[self.config.dtype]
        for name, place, file in self.opened_places():
            if isinstance(place, TensorLocation):
                yield name, place.read(file)
            elif self.on_device and place.form.stays:
                yield from place.read_parts(file).items()
            elif self.counts(place.form) and (read := place.read(file)).has_even_groups:
                for part, tensor in read.levels().items():
                    yield f"{name}.{part}", tensor
            else:
                yield name, place.read(file).dense(wanted)

    def opened_places(self) -> Iterator[tuple[str, TensorLocation | WeightParts, Any]]:
        """Open the files one after the other, each for the tensors that are read with it."""
        for path in dict.fromkeys(place.path for place in self.places.values()):
            with opened(path) as file:
                for name, place in self.places.items():
                    if place.path == path:
                        yield name, place, file


def weight_places(
    wanted: dict[str, Shape],
    found: Mapping[str, Placed],
    scheme: WeightScheme | None,
    check: Callable[[dict[str, Shape], dict[str, Shape]], None],
    source: object,
) -> dict[str, TensorLocation | WeightParts]:
    """The places of wanted tensors, of which quantized ones have parts. Raises ModelError, as `check` does for wanted
    tensors and found ones that differ."""
    found = {name: one for name, one in found.items() if scheme is None or not is_beside(name)}
    shapes = {name: shape for name, (shape, _) in found.items()}
    forms = stored_forms(scheme, wanted, {name: (shape, place.kind) for name, (shape, place) in found.items()})
    parts = in_parts(wanted, forms)
    check(parts, shapes)
    locations = {name: found[name][1] for name in parts}
    check_kinds(locations, source, forms)
    return {name: location_of(name, forms.get(name), locations) for name in wanted}


def location_of(
    name: str, form: WeightForm | None, locations: Mapping[str, TensorLocation]
) -> TensorLocation | WeightParts:
    if form is None:
        return locations[name]
    return WeightParts(name, form, {end: locations[part_of(name, end)] for end in form.parts})


def located(config: ModelConfig, path: Path, stored: str, shape: Shape, kind: str) -> Iterator[tuple[str, Placed]]:
    """The model's tensors that a stored one holds, by their usual names."""
    for name, own, part in tensors_in(config, stored, shape):
        yield name, (own, TensorLocation(path, stored, kind, part))


def check_kinds(
    places: Mapping[str, TensorLocation],
    source: object,
    forms: Mapping[str, WeightForm] | None = None,
) -> None:
    """Raise ModelError for a tensor whose type of numbers is not supported; parts of weights in these `forms` have
    types of their own."""
    parts = {part_of(name, end): part.kinds for name, form in (forms or {}).items() for end, part in form.parts.items()}
    for name, place in places.items():
        known = parts.get(name, READABLE)
        if place.kind not in known:
            raise ModelError(
                f"{source} stores the tensor {name} as {place.kind}: this version reads {', '.join(known)} there, "
                "and quantized weights from GGUF files, or as quantization_config in config.json says"
            )
