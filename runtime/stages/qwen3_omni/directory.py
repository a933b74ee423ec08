# SPDX-License-Identifier: Apache-2.0
"""The weights of the parts of a Qwen3-Omni directory that make speech, and of those that hear and see.

The Talker's decoder is a checkpoint like any other (`talker_checkpoint`); the parts beside it are read from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.fingerprint import HasFingerprint, fingerprint
from pontil.runtime.loaders.facts.form_choice import WeightScheme
from pontil.runtime.loaders.facts.layout import layer_shapes
from pontil.runtime.loaders.facts.name_list import name_list
from pontil.runtime.loaders.facts.shards import shards
from pontil.runtime.loaders.facts.weight_forms import Shape
from pontil.runtime.loaders.hf.config import read_section_scheme
from pontil.runtime.loaders.hf.directory import HfCheckpoint, weight_places
from pontil.runtime.loaders.hf.tensor_files import TensorLocation, opened, stored_tensors
from pontil.runtime.loaders.hf.weight_parts import WeightParts
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.stages.qwen3_omni.config import Code2WavConfig, TalkerConfig

CODE2WAV, PREDICTOR, TALKER = "code2wav.", "talker.code_predictor.", "talker."
AUDIO_TOWER, VISION_TOWER = "thinker.audio_tower.", "thinker.visual."
# The sections of config.json that state them, each within the one before.
SECTIONS = {
    CODE2WAV: ("code2wav_config",), TALKER: ("talker_config",), PREDICTOR: ("talker_config", "code_predictor_config"),
    AUDIO_TOWER: ("thinker_config", "audio_config"), VISION_TOWER: ("thinker_config", "vision_config"),
}  # fmt: skip
PROJECTIONS = ("text_projection", "hidden_projection")
EMBEDDINGS = ("thinker.model.embed_tokens.weight", "thinker.model.language_model.embed_tokens.weight")
MARKS = "text_marks"


@dataclass(frozen=True, slots=True)
class PartCheckpoint:
    """A part of a model. `places` has the location of each of its tensors, by its name within the part. `rows`: of
    these tensors only these rows are read."""

    fingerprint: str
    places: dict[str, TensorLocation | WeightParts]
    rows: dict[str, tuple[int, ...]]

    @property
    def files(self) -> list[Path]:
        return list(dict.fromkeys(path for place in self.places.values() for path in place.paths))

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors; quantized weights as float32, which has them exactly."""
        for path in dict.fromkeys(place.path for place in self.places.values()):
            with opened(path) as file:
                for name, place in self.places.items():
                    if place.path == path:
                        yield name, self.read(name, place, file)

    def read(self, name: str, place: TensorLocation | WeightParts, file: Any) -> torch.Tensor:
        if isinstance(place, WeightParts):
            return place.read(file).dense(torch.float32)
        if name in self.rows:
            stored = file.get_slice(place.stored_name)
            return torch.cat([stored[row : row + 1] for row in self.rows[name]])
        return place.read(file)


def talker_checkpoint(directory: Path, config: TalkerConfig) -> HfCheckpoint:
    """Open the Talker's decoder. Raises ModelError for tensors that are missing or have another shape."""
    return HfCheckpoint.open(directory, config.decoder)


def predictor_checkpoint(directory: Path, config: TalkerConfig) -> PartCheckpoint:
    """Open the code predictor."""
    return part(directory, config, PREDICTOR, predictor_shapes(config.predictor, config.groups))


def projections_checkpoint(directory: Path, config: TalkerConfig) -> PartCheckpoint:
    """Open the projections of the Thinker's states, with the Thinker's embeddings of three ids that mark the text's
    begin, end and padding: `text_marks` [3, thinker_size]."""
    ids = (config.text.tts_bos, config.text.tts_eos, config.text.tts_pad)
    found = part(directory, config, TALKER, projection_shapes(config), lambda name: name.startswith(PROJECTIONS))
    shape, place = embedding(directory)
    if shape[1:] != (config.thinker_size,) or not all(0 <= one < shape[0] for one in ids):
        raise ModelError(f"{directory} has no embeddings of the ids that mark text for speech: fetch the model again")
    return PartCheckpoint(found.fingerprint, found.places | {MARKS: place}, {MARKS: ids})


def code2wav_checkpoint(directory: Path, config: Code2WavConfig) -> PartCheckpoint:
    """Open Code2Wav; the shapes of its tensors are checked as they are taken."""
    return part(directory, config, CODE2WAV, None)


def part(
    directory: Path,
    config: HasFingerprint,
    prefix: str,
    shapes: dict[str, Shape] | None,
    wanted: Callable[[str], bool] = lambda name: True,
) -> PartCheckpoint:
    """Find the tensors whose names begin with the prefix, and check them where their shapes are known."""
    files, scheme = shards(directory), read_section_scheme(directory, SECTIONS[prefix])
    found = {
        stored.removeprefix(prefix): (shape, TensorLocation(path, stored, kind))
        for path in files
        for stored, (shape, kind) in stored_tensors(path).items()
        if stored.startswith(prefix) and wanted(stored.removeprefix(prefix))
    }
    if not found:
        raise ModelError(f"{directory} holds no tensors {prefix}*, so this part cannot run: fetch the whole model")
    if shapes is None:
        refuse_quantized(found, scheme, f"{directory}: the part {prefix}*")
    all_of_them = shapes or {name: shape for name, (shape, _) in found.items()}
    check = partial(check_part, directory=directory, prefix=prefix)
    places = weight_places(all_of_them, found, scheme, check, directory)
    return PartCheckpoint(fingerprint(config, files, "" if scheme is None else repr(scheme)), places, {})


def refuse_quantized(found: Mapping[str, object], scheme: WeightScheme | None, part: str) -> None:
    """Raise ModelError for quantized weights whose shapes nothing states."""
    marks = () if scheme is None else tuple({f".{form.mark}" for form in scheme.forms((1, 1))})
    names = [name for name in found if name.endswith(marks)] if marks else []
    if names:
        raise ModelError(
            f"{part} has quantized weights, {name_list(names)}, which this version reads of the other parts only: "
            "fetch a version of the model that has these in 16 bits"
        )


def check_part(wanted: Mapping[str, Shape], found: Mapping[str, Shape], directory: Path, prefix: str) -> None:
    """Raise ModelError for tensors that are missing, of another shape, or not of the part."""
    for name, shape in wanted.items():
        if name in found and found[name] != shape:
            raise ModelError(
                f"{directory} holds {prefix}{name} as {list(found[name])}, not {list(shape)}: fetch the model again"
            )
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    if missing or extra:
        fault = f"lacks {name_list(missing)}" if missing else f"holds {name_list(extra)}, which it does not have"
        raise ModelError(f"{directory}: the part {prefix}* {fault}: fetch the model again")


def embedding(directory: Path) -> tuple[Shape, TensorLocation]:
    """The Thinker's embedding."""
    for path in shards(directory):
        for stored, (shape, kind) in stored_tensors(path).items():
            if stored in EMBEDDINGS:
                return shape, TensorLocation(path, stored, kind)
    raise ModelError(f"{directory} lacks the tensor {EMBEDDINGS[0]}: fetch the model again")


def predictor_shapes(config: ModelConfig, groups: int) -> dict[str, Shape]:
    table = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {f"model.codec_embedding.{number}.weight": table for number in range(groups - 1)}
    for layer in range(config.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes(config, layer).items()}
    shapes["model.norm.weight"] = (config.hidden_size,)
    return shapes | {f"lm_head.{number}.weight": table for number in range(groups - 1)}


def projection_shapes(config: TalkerConfig) -> dict[str, Shape]:
    inner, outer = config.decoder.intermediate_size, config.decoder.hidden_size
    sizes = (("linear_fc1", config.thinker_size, inner), ("linear_fc2", inner, outer))
    shapes: dict[str, Shape] = {}
    for name in PROJECTIONS:
        for layer, inputs, outputs in sizes:
            shapes |= {f"{name}.{layer}.weight": (outputs, inputs), f"{name}.{layer}.bias": (outputs,)}
    return shapes
