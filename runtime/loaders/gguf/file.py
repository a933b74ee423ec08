# SPDX-License-Identifier: Apache-2.0
"""Weights of a GGUF file, dequantized, and named, ordered and stacked as in Hugging Face's files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.fingerprint import fingerprint
from pontil.runtime.loaders.facts.layout import check_shapes, tensor_shapes
from pontil.runtime.loaders.facts.weight_forms import EMBEDDING
from pontil.runtime.loaders.gguf.block_sizes import CODEBOOKS
from pontil.runtime.loaders.gguf.config import gguf_config
from pontil.runtime.loaders.gguf.ggml_levels import LEVELS, STEPS, places_in
from pontil.runtime.loaders.gguf.ggml_types import GGML_TYPES, GgmlType, type_name
from pontil.runtime.loaders.gguf.header import GgufTensor
from pontil.runtime.loaders.gguf.names import KEYS_OF_LATENTS, VALUES_OF_LATENTS, names_of
from pontil.runtime.loaders.gguf.packed_formats import ROUTER, TABLES
from pontil.runtime.loaders.gguf.parts import GgufParts, read_parts
from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.config import ModelConfig

CHUNK_ELEMENTS = 1 << 18
"""Numbers held in float32 at a time: a cache-sized part is fastest, a whole embedding could need gigabytes."""
SMALLEST_ALIGNMENT, F32 = 8, 0
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """`places` is keyed by Hugging Face's names, in the order in which a model reads them. Vectors stay float32:
    rounding would save almost nothing. Levels are for the kernels of a CPU, or `on_device`."""

    config: ModelConfig
    fingerprint: str
    files: list[Path]
    places: dict[str, GgufTensor]
    latents: dict[str, tuple[GgufTensor, GgufTensor]]
    on_device: bool = False

    @classmethod
    def open(cls, path: Path) -> GgufCheckpoint:
        parts = read_parts(path)
        config = gguf_config(parts.header)
        found = found_in(parts, config)
        latents = joined_latents(found)
        check_shapes(config, tensor_shapes(config), {name: tensor.shape for name, tensor in found.items()}, path)
        places = {name: found[name] for name in tensor_shapes(config) if name in found} | found
        return cls(config, fingerprint(config, parts.files), parts.files, places, latents)

    @property
    def unpacked_types(self) -> list[str]:
        """None: every type of less than 16 bits that can be read has whole numbers."""
        return []

    def for_device(self) -> GgufCheckpoint:
        return replace(self, on_device=True)

    def narrowed(self, config: ModelConfig) -> GgufCheckpoint:
        wanted = tensor_shapes(config)
        return replace(
            self, config=config, places={name: place for name, place in self.places.items() if name in wanted}
        )

    @property
    def has_levels(self) -> bool:
        return any(self.has_level(name) for name in self.places)

    def has_level(self, name: str) -> bool:
        """Return whether the file holds a weight as whole numbers with scales. A router is small, and chooses."""
        place = self.places[name]
        return place.kind in LEVELS and len(place.shape) == 2 and ROUTER not in name

    def tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        whole, wanted = self.open_data(), dtype or DTYPES[self.config.dtype]
        for name in self.places:
            yield name, self.read(whole, name, wanted)

    @property
    def embedding_type(self) -> GgmlType | None:
        """The type of the blocks that a model can look rows up in; None where no embedding is, or is read whole."""
        place = self.places.get(EMBEDDING)
        return GGML_TYPES[place.kind] if place and place.kind in LEVELS and place.kind not in CODEBOOKS else None

    def levels(self, dtype: torch.dtype | None = None, stored_rows: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights like `tensors`, but for those that the file holds as integers with scales, `name.numbers`
        (int8 or uint8), `name.scales` and `name.offsets` (float32) replace `name`: a group of neighbouring weights is
        numbers * scale + offset, and of some types scales and offsets are whole multiples of `name.steps`, or numbers
        are those of `name.table` (int8) at the places that stand in their stead (uint8). An embedding
        comes in both forms if the head is tied to it, else only dequantized: or, with `stored_rows`, in the blocks of
        `embedding_type`, `name.blocks` uint8 [rows, bytes]. For a device it is a weight like any other."""
        whole, wanted = self.open_data(), dtype or DTYPES[self.config.dtype]
        for name, place in self.places.items():
            embedding, counted = name == EMBEDDING, self.has_level(name)
            if embedding and stored_rows and self.embedding_type is not None:
                yield f"{name}.blocks", blocks_of(whole[place.part], name, place).reshape(place.shape[0], -1).clone()
            elif not counted or (embedding and not self.on_device):
                yield name, self.read(whole, name, wanted)
            if counted and (not embedding or self.on_device or self.config.tie_word_embeddings):
                held = whole[place.part]
                parts = dict(zip(("numbers", "scales", "offsets"), read_levels(held, name, place), strict=True))
                if place.kind in STEPS:
                    parts = {"steps": STEPS[place.kind](blocks_of(held, name, place))} | parts
                if place.kind in TABLES:
                    table = torch.tensor(TABLES[place.kind], dtype=torch.int8)
                    yield f"{name}.table", table
                    parts["numbers"] = places_in(table, parts["numbers"])
                for part, tensor in parts.items():
                    rows = tensor.reshape(place.shape[0], -1)
                    yield f"{name}.{part}", self.as_hugging_face_has_it(name, rows).contiguous()

    def open_data(self) -> list[torch.Tensor]:
        """Return the bytes of each file."""
        try:
            return [torch.from_numpy(np.memmap(path, mode="c")) for path in self.files]
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.files[0]} cannot be read: {error}") from error

    def read(self, whole: list[torch.Tensor], name: str, dtype: torch.dtype) -> torch.Tensor:
        place = self.places[name]
        if name in self.latents:
            keys, values = (read_tensor(whole[one.part], name, one, dtype) for one in self.latents[name])
            return torch.cat([keys.transpose(1, 2), values], dim=1).reshape(place.shape)
        tensor = read_tensor(whole[place.part], name, place, dtype if len(place.shape) > 1 else torch.float32)
        return self.as_hugging_face_has_it(name, tensor)

    def as_hugging_face_has_it(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Undo the changes of llama.cpp's converter to the weights."""
        config, architecture = self.config, ARCHITECTURES[self.config.architecture]
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        if heads is not None and architecture.interleaved:
            return halves_from_pairs(tensor, heads)
        if architecture.offset_norms and name.endswith("norm.weight"):
            return tensor - 1
        return tensor


def found_in(parts: GgufParts, config: ModelConfig) -> dict[str, GgufTensor]:
    """Return the tensors of a model's layers and of what is around them, by Hugging Face's names. Raises ModelError."""
    sizes = [file.stat().st_size for file in parts.files]
    for name, tensor in parts.header.tensors.items():
        if tensor.offset + byte_size(name, tensor) > sizes[tensor.part]:
            raise ModelError(f"{parts.files[tensor.part]} is cut off before the end of {name}: fetch it again")
    return dict(pair for name, tensor in parts.header.tensors.items() for pair in named(name, tensor, config))


def named(name: str, tensor: GgufTensor, config: ModelConfig) -> list[tuple[str, GgufTensor]]:
    """Return the tensor, or its parts, under Hugging Face's names."""
    names = names_of(name, tensor.shape, config)
    if len(names) < 2:
        return [(one, tensor) for one in names]
    size, rows = byte_size(name, tensor) // len(names), tensor.shape[0] // len(names)
    shape = tensor.shape[1:] if rows == 1 else (rows, *tensor.shape[1:])
    return [
        (one, replace(tensor, shape=shape, offset=tensor.offset + number * size)) for number, one in enumerate(names)
    ]


def joined_latents(found: dict[str, GgufTensor]) -> dict[str, tuple[GgufTensor, GgufTensor]]:
    """Take the products of latents that are held in two tensors, [heads, rank, key_dim] and [heads, value_dim, rank],
    and put the one that they are parts of in their place."""
    parts: dict[str, tuple[GgufTensor, GgufTensor]] = {}
    for name in [name for name in found if name.endswith(f"{KEYS_OF_LATENTS}.weight")]:
        prefix = name.removesuffix(f"{KEYS_OF_LATENTS}.weight")
        keys, values = found.pop(name), found.pop(f"{prefix}{VALUES_OF_LATENTS}.weight", None)
        if values is None or len(keys.shape) != 3 or len(values.shape) != 3:
            raise ModelError(f"the GGUF file holds {name} without its values, or in another form: fetch it again")
        whole = f"{prefix}self_attn.kv_b_proj.weight"
        parts[whole] = keys, values
        found[whole] = replace(keys, shape=(keys.shape[0] * (keys.shape[2] + values.shape[1]), keys.shape[1]), kind=F32)
    return parts


def halves_from_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of rows for rotation.

    llama.cpp rotates neighbouring rows (0, 1), (2, 3), … of each head, Hugging Face rows of its two halves (0, d/2),
    (1, d/2 + 1), …: the converter interleaved the halves, and this function separates them again. Shape [rows, columns]
    or [rows].
    """
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def byte_size(name: str, tensor: GgufTensor) -> int:
    """Return the tensor's size. Raises ModelError for an unknown type of numbers, or rows that are not whole blocks of
    it."""
    kind = GGML_TYPES.get(tensor.kind)
    if kind is None:
        known = ", ".join(one.name for one in GGML_TYPES.values())
        raise ModelError(
            f"the tensor {name} is stored as {type_name(tensor.kind)}, which cannot be read: this version reads {known}"
        )
    if not tensor.shape or tensor.shape[-1] % kind.numbers or tensor.offset % SMALLEST_ALIGNMENT:
        raise ModelError(
            f"the rows of the tensor {name} are not whole, aligned blocks of {kind.numbers}: fetch the model again"
        )
    return math.prod(tensor.shape) // kind.numbers * kind.size


def blocks_of(whole: torch.Tensor, name: str, place: GgufTensor) -> torch.Tensor:
    """Return the tensor's blocks, uint8 [blocks, bytes]."""
    return whole[place.offset : place.offset + byte_size(name, place)].view(-1, GGML_TYPES[place.kind].size)


def read_tensor(whole: torch.Tensor, name: str, place: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
    """Dequantize a tensor to `dtype` by way of float32."""
    kind, stored = GGML_TYPES[place.kind], blocks_of(whole, name, place)
    result = torch.empty(len(stored), kind.numbers, dtype=dtype)
    for part, read in zip(
        result.split(CHUNK_ELEMENTS // kind.numbers), stored.split(CHUNK_ELEMENTS // kind.numbers), strict=True
    ):
        part.copy_(kind.read(read))
    return result.view(place.shape)


def read_levels(whole: torch.Tensor, name: str, place: GgufTensor) -> list[torch.Tensor]:
    """Return a tensor's numbers, scales and offsets, taken apart a few blocks at a time."""
    stored, count = blocks_of(whole, name, place), CHUNK_ELEMENTS // GGML_TYPES[place.kind].numbers
    found: list[torch.Tensor] = []
    for index, blocks in enumerate(stored.split(count)):
        parts = LEVELS[place.kind](blocks)
        found = found or [torch.empty(len(stored), part.shape[1], dtype=part.dtype) for part in parts]
        for result, part in zip(found, parts, strict=True):
            result[index * count :][: len(part)] = part
    return found
