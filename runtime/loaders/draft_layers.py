# SPDX-License-Identifier: Apache-2.0
"""Layers that guess from another model's hidden states: found, checked and opened in Hugging Face directories and GGUF
files. Torch is loaded only to open one.

A DeepSeek V3 or GLM-4.5 directory holds an MTP layer behind the model's own (`model.layers.<num_hidden_layers>.`):
`enorm`, `hnorm`, `eh_proj`, a decoder layer and `shared_head.norm`. Its embedding and head repeat the model's. A GGUF
file of one has the same in `blk.<layers>.`, and says how many such layers it has (`nextn_predict_layers`).

A Qwen3-Next or Qwen3.5 directory has its MTP layer apart: `mtp.pre_fc_norm_embedding`, `mtp.pre_fc_norm_hidden`,
`mtp.fc`, which joins embedding and state, `mtp.layers.0.`, a layer with gated attention, and `mtp.norm`, behind which
the next guess starts too.

An EAGLE directory holds `fc`, which joins embedding and state, and `layers.0.`, a decoder layer without its first norm.
vLLM and SGLang read it so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pontil.runtime.errors import DraftModelError, ModelError
from pontil.runtime.foundation.draft_names import MTP
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.architectures import checked
from pontil.runtime.loaders.facts.fingerprint import fingerprint
from pontil.runtime.loaders.facts.form_choice import WeightScheme
from pontil.runtime.loaders.facts.json_fields import MOST_LAYERS, read_json, section
from pontil.runtime.loaders.facts.layout import layer_shapes
from pontil.runtime.loaders.facts.name_list import name_list
from pontil.runtime.loaders.facts.safetensors_header import header_tensors
from pontil.runtime.loaders.facts.shards import shards
from pontil.runtime.loaders.facts.weight_forms import Shape, WeightForm
from pontil.runtime.loaders.facts.weight_schemes import stored_forms, weight_scheme
from pontil.runtime.loaders.gguf.packed_formats import NumberFormat, gguf_formats
from pontil.runtime.loaders.gguf.parts import read_parts
from pontil.runtime.loaders.hf.config import FIXED, model_config, refuse_unsupported, text_model
from pontil.runtime.loaders.hf.fused_experts import tensors_in
from pontil.runtime.loaders.level_formats import device_forms, level_forms
from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.config import DraftLayerForm, ModelConfig

if TYPE_CHECKING:
    from pontil.runtime.loaders.gguf.file import GgufCheckpoint
    from pontil.runtime.loaders.hf.directory import HfCheckpoint
    from pontil.runtime.loaders.hf.tensor_files import TensorLocation

One = TypeVar("One")
INNER = "model.layers.0."
GUESSING_TENSOR = "nextn.eh_proj.weight"
EAGLE_NAMES = ("eagle", "Eagle", "EAGLE")
JOINT = "mtp.fc."
# The names of an MTP layer apart. Of several layers the first is read; tensors of other names are refused.
APART = {
    r"mtp\.pre_fc_norm_embedding\.(.+)": "enorm.",
    r"mtp\.pre_fc_norm_hidden\.(.+)": "hnorm.",
    r"mtp\.fc\.(.+)": "eh_proj.",
    r"mtp\.norm\.(.+)": "model.norm.",
    r"mtp\.layers\.0\.(.+)": INNER,
    r"mtp\.((?!layers\.).+)": "",
}


@dataclass(frozen=True, slots=True)
class DraftLayerSource:
    """A draft layer in a directory, or in a GGUF file. `config` is that of a model of this one layer; `renamed` has
    patterns of tensors' names in a directory, with what they are called here; `ignored` ones repeat tensors of the
    target. Weights may be quantized by the directory's `scheme`."""

    path: Path
    config: ModelConfig
    is_mtp: bool
    renamed: Mapping[str, str]
    ignored: str = ""
    bias: bool = False
    scheme: WeightScheme | None = None

    @property
    def shapes(self) -> dict[str, Shape]:
        """The layer's tensors by their names here."""
        size = self.config.hidden_size
        shapes: dict[str, Shape] = {"enorm.weight": (size,), "hnorm.weight": (size,)} if self.is_mtp else {}
        shapes["eh_proj.weight"] = (size, 2 * size)
        if self.bias:
            shapes["eh_proj.bias"] = (size,)
        block = {INNER + name: shape for name, shape in layer_shapes(self.config, 0).items()}
        if self.is_mtp:
            return shapes | block | {"model.norm.weight": (size,)}
        del block[INNER + "input_layernorm.weight"]
        return shapes | block

    def count_weights(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def form(self) -> DraftLayerForm:
        if self.is_mtp:
            apart = ARCHITECTURES[self.config.architecture].guessing_layers == "apart"
            return DraftLayerForm(normed=True, feeds_normed=apart)
        unnormed = frozenset({INNER + "input_layernorm", "model.norm"})
        return DraftLayerForm(normed=False, bias=self.bias, without_norms=unnormed)

    def name_here(self, stored: str) -> str | None:
        """Return the name of a stored tensor here; None for one that is not of this layer. A head's others keep theirs:
        they are too many."""
        for pattern, name in self.renamed.items():
            found = re.fullmatch(pattern, stored)
            if found is not None:
                return name + found[1]
        return None if self.is_mtp or re.fullmatch(self.ignored, stored) is not None else stored

    def level_formats(self, on_device: bool = False) -> dict[str, NumberFormat]:
        """Return the formats of the weights that are stored as whole numbers, by their names here. Raises
        ModelError."""
        if self.path.is_dir():
            return device_forms(self.forms()) if on_device else level_forms(self.forms())
        formats = self.here(gguf_formats(self.path, in_any_layer(self.config)))
        return {name: one.on_device() for name, one in formats.items()} if on_device else formats

    def forms(self) -> dict[str, WeightForm]:
        """Return the forms of a directory's quantized weights, by their names here. Raises ModelError."""
        if not self.path.is_dir():
            return {}
        stored = (self.here(header_tensors(file)).items() for file in shards(self.path))
        found = {
            name: (own, kind)
            for one in stored
            for here, (shape, kind) in one
            for name, own, _ in tensors_in(self.config, here, shape)
        }
        return stored_forms(self.scheme, self.shapes, found)

    def here(self, found: Mapping[str, One]) -> dict[str, One]:
        """Return what was found of this layer, by the names here."""
        return {here: one for name, one in found.items() if (here := self.name_here(name)) is not None}


def find_draft_layer(target: Path, name: str | Path) -> DraftLayerSource | None:
    """Return the layer that `--speculative-model` names, checked to fit its target; None where a whole model is named.
    Raises DraftModelError for one that is not there, or does not fit."""
    try:
        if str(name) == MTP:
            return mtp_source(target)
        return eagle_source(target, Path(name)) if is_eagle(Path(name)) else None
    except DraftModelError:
        raise
    except ModelError as error:
        raise DraftModelError(f"--speculative-model cannot be used: {error}") from error


def mtp_source(target: Path) -> DraftLayerSource:
    """Raises DraftModelError for a model that has no MTP layer."""
    config = read_config(target)
    kind = ARCHITECTURES[config.architecture].guessing_layers
    data = text_model(read_json(target / "config.json")) if target.is_dir() else {}
    if kind is None or not has_guessing_layer(target, config, data):
        raise DraftModelError(
            f"--speculative-model {MTP} needs a checkpoint with an MTP layer, and {target.name} has none: name a "
            "smaller model with the same tokenizer, or an EAGLE head, or leave it out"
        )
    renamed = APART if kind == "apart" else names_behind(config.num_layers)
    return DraftLayerSource(target, one_layer(config), True, renamed, scheme=weight_scheme(data))


def names_behind(layers: int) -> dict[str, str]:
    """The names of an MTP layer behind so many layers."""
    prefix = re.escape(f"model.layers.{layers}.")
    return {
        prefix + r"((?:enorm|hnorm|eh_proj)\..+)": "",
        prefix + r"shared_head\.norm\.(weight)": "model.norm.",
        prefix + r"((?!shared_head|embed_tokens).+)": INNER,
    }


def is_eagle(path: Path) -> bool:
    """Return whether this is a directory of an EAGLE head, by its configuration."""
    if not (path / "config.json").is_file():
        return False
    data = read_json(path / "config.json")
    names = data.get("architectures")
    named = [data.get("model_type"), *(names if isinstance(names, list) else ())]
    return any(word in name for name in named if isinstance(name, str) for word in EAGLE_NAMES)


def eagle_source(target: Path, path: Path) -> DraftLayerSource:
    """Raises ModelError for a head that does not fit."""
    data, ours = read_json(path / "config.json"), read_config(target)
    if data.get("model_type") == "eagle":
        data |= section(data, "model")
    if "draft_vocab_size" in data or any("agle3" in str(name) for name in data.get("architectures") or ()):
        raise DraftModelError(
            f"--speculative-model {path.name} is an EAGLE-3 head, which reads states of several layers: this version "
            "runs the first kind, so name such a head, or a smaller model with the same tokenizer"
        )
    kind = data.get("model_type")
    name = kind if kind in tuple(ARCHITECTURES) else ours.architecture
    row = ARCHITECTURES[name]
    data = {**row.defaults, **data, "tie_word_embeddings": False}
    refuse_unsupported(data, {**FIXED, **row.fixed})
    config = checked(model_config(row, data, ours.eos_token_ids))
    if (config.num_layers, config.hidden_size, config.vocab_size) != (1, ours.hidden_size, ours.vocab_size):
        raise DraftModelError(
            f"--speculative-model {path.name} is an EAGLE head of {config.num_layers} layers, hidden size "
            f"{config.hidden_size} and {config.vocab_size} tokens, and {target.name} needs 1 layer, hidden size "
            f"{ours.hidden_size} and {ours.vocab_size} tokens: name a head that was trained for this model"
        )
    config = replace(one_layer(config), max_model_len=min(config.max_model_len, ours.max_model_len))
    renamed = {r"(?:model\.)?fc\.(.+)": "eh_proj.", r"(?:model\.)?layers\.0\.(.+)": INNER}
    ignored = r"((?:model\.)?embed_tokens|lm_head)\..+"
    return DraftLayerSource(path, config, False, renamed, ignored, bool(data.get("bias")), weight_scheme(data))


def one_layer(config: ModelConfig) -> ModelConfig:
    """A model of one layer like the last of this one that has keys and values."""
    experts = None if config.experts is None else replace(config.experts, dense_layers=())
    return replace(config, num_layers=1, windows=config.windows[-1:], experts=experts, mixer=config.latent)


def in_any_layer(config: ModelConfig) -> ModelConfig:
    """The same with so many layers that any in a file is one of them."""
    return replace(config, num_layers=MOST_LAYERS)


def has_guessing_layer(target: Path, config: ModelConfig, data: dict[str, Any]) -> bool:
    """Return whether a file holds such a layer, or a directory of this config.json. Configurations do not say so of one
    apart. Raises ModelError."""
    if not target.is_dir():
        return f"blk.{config.num_layers}.{GUESSING_TENSOR}" in read_parts(target).header.tensors
    if ARCHITECTURES[config.architecture].guessing_layers == "behind":
        return bool(data.get("num_nextn_predict_layers"))
    # The last file mostly has it.
    return any(name.startswith(JOINT) for file in reversed(shards(target)) for name in header_tensors(file))


def open_draft_layer(source: DraftLayerSource) -> HfCheckpoint | GgufCheckpoint:
    """Open the layer's tensors, by their names here. Raises DraftModelError for files that do not hold them."""
    opened = open_in_directory(source) if source.path.is_dir() else open_in_gguf(source)
    return replace(
        opened, fingerprint=fingerprint(source.config, opened.files, f"draft layer {source.is_mtp} {source.bias}")
    )


def open_in_directory(source: DraftLayerSource) -> HfCheckpoint:
    from pontil.runtime.loaders.hf.directory import HfCheckpoint, weight_places

    check = partial(check_tensors, source)
    places = weight_places(source.shapes, dict(find_tensors(source)), source.scheme, check, source.path)
    return HfCheckpoint(source.config, "", places)


def open_in_gguf(source: DraftLayerSource) -> GgufCheckpoint:
    from pontil.runtime.loaders.gguf.file import GgufCheckpoint, found_in, joined_latents

    parts = read_parts(source.path)
    found = source.here(found_in(parts, in_any_layer(source.config)))
    latents = joined_latents(found)
    check_tensors(source, source.shapes, {name: tensor.shape for name, tensor in found.items()})
    places = {name: found[name] for name in source.shapes}
    return GgufCheckpoint(source.config, "", parts.files, places, latents)


def find_tensors(source: DraftLayerSource) -> Iterable[tuple[str, tuple[Shape, TensorLocation]]]:
    from pontil.runtime.loaders.hf.tensor_files import TensorLocation, stored_tensors

    for path in shards(source.path):
        for stored, (shape, kind) in stored_tensors(path).items():
            here = source.name_here(stored)
            for name, own, part in () if here is None else tensors_in(source.config, here, shape):
                yield name, (own, TensorLocation(path, stored, kind, part))


def check_tensors(source: DraftLayerSource, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    what = "MTP layer" if source.is_mtp else "EAGLE head"
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    wrong = [f"{name} {list(found[name])}" for name in wanted if name in found and found[name] != wanted[name]]
    for fault, names in (("lacks", missing), ("has in another shape", wrong), ("holds besides", extra)):
        if names:
            raise DraftModelError(
                f"the {what} in {source.path} {fault} {name_list(names)}: fetch it again, or leave out "
                "--speculative-model"
            )
