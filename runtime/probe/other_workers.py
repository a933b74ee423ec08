# SPDX-License-Identifier: Apache-2.0
"""The memory of workers beside those that answer: of models that embed or score texts, and of the later stages of a
model of several.

Their weights are counted as the model's files have them, which is the least that they take. torch is not imported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pontil.runtime.loaders.config import is_encoder, read_config
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.loaders.facts.safetensors_header import header_tensors
from pontil.runtime.loaders.facts.shards import INDEX, WHOLE, shards
from pontil.runtime.loaders.facts.weight_forms import EMBEDDING, HEAD
from pontil.runtime.loaders.gguf.packed_formats import AUTO
from pontil.runtime.loaders.level_formats import embedding_quantization, may_have_levels
from pontil.runtime.probe.footprint import CPU, IMPORTED_BYTES, SERVING_BYTES, Footprint
from pontil.runtime.probe.packed_share import LEAST_BYTES
from pontil.runtime.probe.weight_memory import formats_of

EMBEDDER, RERANKER = "embedder", "reranker"
# An embedding model computes in float32, beside whole numbers of its files in bfloat16, and has no use for a head. One
# that scores computes in float32.
FLOAT_BYTES, SHORT_BYTES = 4, 2
TYPE_BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "F16": 16, "BF16": 16}
OTHER_BITS = 8


@dataclass(frozen=True, slots=True)
class OtherWorker:
    """A worker that embeds texts, or `scores` them, with a model, or of the `stage` of that name, which has a model of
    its `own` or a part of the answering one's. Packed weights may be shared where kernels compute them."""

    model: str
    stage: str | None
    own: bool
    devices: Sequence[str]
    has_kernels: bool = True
    scores: bool = False
    quantization: str = AUTO

    def footprint(self, path: Path, device: str) -> Footprint:
        """Return what it takes of a device. Raises ModelError."""
        on_host, part = device == CPU, f"{self.title} of {path}"
        has_kernels = on_host and self.has_kernels
        if self.stage is None:
            size = embedder_bytes(path, has_kernels, "none" if self.scores else self.quantization)
        else:
            size = stage_bytes(path, self.stage, self.own)
        if not on_host:
            return Footprint(size, 0, part=part, model=path.name)
        # Other parts than these have their weights as torch and other libraries read them.
        is_shared = has_kernels and (self.stage is None or not self.own) and size >= LEAST_BYTES
        process, shared = IMPORTED_BYTES + SERVING_BYTES, size if is_shared else 0
        return Footprint(size, 0, 0, process, IMPORTED_BYTES, 0, shared, part, path.name)

    @property
    def title(self) -> str:
        return self.stage or (RERANKER if self.scores else EMBEDDER)


def other_footprints(others: Sequence[OtherWorker], paths: Mapping[str, Path]) -> dict[str, list[Footprint]]:
    """Return the footprints on each device, of the models that are here. Raises ModelError."""
    held: dict[str, list[Footprint]] = {}
    for other in others:
        for device in other.devices if other.model in paths else ():
            held.setdefault(device, []).append(other.footprint(paths[other.model], device))
    return held


def other_lines(others: Sequence[OtherWorker], paths: Mapping[str, Path]) -> list[str]:
    """Return in words the memory of a worker of each part, of the models that are here. Raises ModelError."""
    seen = {other.title: other for other in reversed(others) if other.model in paths}
    return [
        f"each {title}: {other.footprint(paths[other.model], other.devices[0]).words}, or more"
        for title, other in reversed(seen.items())
    ]


def embedder_bytes(path: Path, has_kernels: bool = True, quantization: str = AUTO) -> int:
    """Return the bytes of an embedding model. A decoder's are what its tensors are read as: of whole numbers that
    kernels multiply, these."""
    if is_encoder(path):
        return FLOAT_BYTES * sum(math.prod(shape) for shape, _ in tensors_of(path).values())
    config = read_config(path)
    made = embedding_quantization(quantization, may_have_levels(path, config), has_kernels)
    formats = formats_of(path, config, made, FLOAT_BYTES if made == "none" else SHORT_BYTES, has_kernels)
    shapes = {name: shape for name, shape in tensor_shapes(config).items() if name != HEAD}
    embedding = formats.embedding or formats.plain.size(math.prod(shapes.pop(EMBEDDING)))
    return embedding + sum(formats.of(name, shape).size(math.prod(shape)) for name, shape in shapes.items())


def stage_bytes(path: Path, stage: str, own: bool) -> int:
    """Return the bytes of a stage's own model; of one directory for all, those of its folder there, or of the tensors
    that are named by it."""
    if own or (path / stage).is_dir():
        place = path if own else path / stage
        if has_tensors(place):
            return sum(file.stat().st_size for file in shards(place))
        return place.stat().st_size if place.is_file() else largest_format(place)
    if not has_tensors(path):
        return 0
    tensors = ((kind, shape) for name, (shape, kind) in tensors_of(path).items() if name.startswith(f"{stage}."))
    return sum(TYPE_BITS.get(kind, OTHER_BITS) * math.prod(shape) // 8 for kind, shape in tensors)


def largest_format(folder: Path) -> int:
    """Return the bytes of the files of that ending which has the most: a folder may have the same weights in several
    forms. Hidden folders, which are those of tools, do not count."""
    held: Counter[str] = Counter()
    for file in folder.rglob("*"):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts):
            held[file.suffix] += file.stat().st_size
    return max(held.values(), default=0)


def has_tensors(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in (WHOLE, INDEX))


def tensors_of(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: found for file in shards(path) for name, found in header_tensors(file).items()}
