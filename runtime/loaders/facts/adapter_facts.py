# SPDX-License-Identifier: Apache-2.0
"""The facts about an adapter of PEFT: its configuration, and names, shapes and types of its matrices. No torch here."""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pontil.runtime.errors import AdapterError, ModelError
from pontil.runtime.loaders.facts.adapter_layers import (
    MOST_RANK,
    AdapterSize,
    BaseLayers,
    LayerSize,
    Stated,
    has_all_experts,
)
from pontil.runtime.loaders.facts.form_choice import Stored
from pontil.runtime.loaders.facts.json_fields import number, section, short
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.loaders.facts.safetensors_header import header_size, header_tensors
from pontil.runtime.models.config import ModelConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOST_BYTES = 2 << 30
"""The file of weights is read at once, so that its digest is that of the numbers."""
MOST_CONFIG_BYTES = 1 << 20
MOST_INVOCATION, MOST_ID = 256, 1 << 31
INVOCATION = "alora_invocation_tokens"
READ_BYTES = 1 << 20
TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
PLAIN_KEY = re.compile(r"[\w.]+")
ANY_BEFORE = r".*\."
"""The beginning that PEFT itself writes into patterns, of names with this ending."""
KIND_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
          "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "mlp.gate", "mlp.shared_expert_gate",
          "in_proj", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj",
          )  # fmt: skip
"""Layers that may be adapted, by the ends of their names."""
# Fields of kinds that this version does not compute, and the kinds.
UNSUPPORTED = {
    "use_dora": "is of the kind DoRA",
    "modules_to_save": "brings whole modules of its own (modules_to_save)",
    "trainable_token_indices": "brings tokens of its own (trainable_token_indices)",
    "lora_bias": "has biases of its own (lora_bias)",
    "fan_in_fan_out": "has transposed weights (fan_in_fan_out)",
    "megatron_config": "is divided as Megatron does",
    "layer_replication": "repeats layers (layer_replication)",
    "use_qalora": "is of the kind QALoRA",
}


@dataclass(frozen=True, slots=True)
class Scaling:
    """The factors of an adapter's layers, and the ranks that its configuration states; those of single layers, or of
    all with an ending of their name, in patterns. The tokens of its `invocation` activate it, if there are any. The
    `version` of PEFT that saved it may be stated."""

    rank: int
    alpha: float
    by_root: bool
    ranks: Mapping[str, Any]
    alphas: Mapping[str, Any]
    invocation: tuple[int, ...] = ()
    version: tuple[int, int] | None = None

    @classmethod
    def of(cls, directory: Path, config: bytes) -> Scaling:
        path = directory / CONFIG
        try:
            data = json.loads(config)
        except (ValueError, RecursionError) as error:
            raise AdapterError(f"{path} is not JSON: save the adapter again") from error
        if not isinstance(data, dict):
            raise AdapterError(f"{path} holds no JSON object: save the adapter again")
        if data.get("peft_type") != "LORA":
            says = f"{directory} is an adapter of the type {short(data.get('peft_type'))}"
            raise AdapterError(f"{says}: this version computes LORA only")
        for key, what in UNSUPPORTED.items():
            if data.get(key):
                raise AdapterError(f"{directory} {what}: this version computes plain LoRA only")
        if data.get("bias", "none") != "none":
            raise AdapterError(f"{directory} has biases of its own (bias = {short(data['bias'])}): train it with none")
        ranks, alphas = (
            {key.removeprefix(ANY_BEFORE): value for key, value in section(data, f"{name}_pattern").items()}
            for name in ("rank", "alpha")
        )
        for key in (*ranks, *alphas):
            if not PLAIN_KEY.fullmatch(key):
                raise AdapterError(f"{path} has the pattern {short(key)}: this version reads names of layers only")
        factors = whole_rank(data, "r"), number(data, "lora_alpha"), bool(data.get("use_rslora")), ranks, alphas
        return cls(*factors, read_invocation(data.get(INVOCATION), path), read_version(data.get("peft_version")))

    @property
    def stated(self) -> Stated:
        return Stated(self.factor, self.version)

    def factor(self, name: str, rank: int) -> float:
        """Return what a layer's product is multiplied by. Raises AdapterError where the tensors have another rank than
        the configuration says."""
        stated = whole_rank(self.ranks, key) if (key := key_for(self.ranks, name)) else self.rank
        if rank != stated:
            raise AdapterError(f"the adapter of {name} has rank {rank}, and {CONFIG} says {stated}: save it again")
        alpha = number(dict(self.alphas), key) if (key := key_for(self.alphas, name)) else self.alpha
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def read_invocation(told: object, path: Path) -> tuple[int, ...]:
    """Return the tokens that activate an adapter; none for one that always is."""
    if told is None:
        return ()
    if type(told) is not list or not all(type(token) is int and 0 <= token < MOST_ID for token in told):
        raise AdapterError(f"{path} has in {INVOCATION} no list of token ids: save the adapter again")
    if not 1 <= len(told) <= MOST_INVOCATION:
        says = f"{path} has {len(told)} tokens in {INVOCATION}"
        raise AdapterError(f"{says}: give 1 to {MOST_INVOCATION}, or leave it out for an adapter that is always in use")
    return tuple(told)


def read_version(told: object) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,4})\.(\d{1,4})\b", told) if isinstance(told, str) else None
    return found and (int(found[1]), int(found[2]))


def key_for(pattern: Mapping[str, Any], name: str) -> str | None:
    """Return the first key that is a layer's name or the end of it, as PEFT does."""
    return next((key for key in pattern if name == key or name.endswith(f".{key}")), None)


def whole_rank(data: Mapping[str, Any], key: str) -> int:
    rank = data.get(key)
    if type(rank) is not int or not 1 <= rank <= MOST_RANK:
        raise AdapterError(f"the adapter has the rank {short(rank)}: this version computes 1 to {MOST_RANK}")
    return rank


def adapter_sizes(directory: Path, tensors: Mapping[str, Stored]) -> dict[str, AdapterSize]:
    """Return the sizes of each layer's adapter from the shapes and types of an adapter's tensors."""
    if not tensors:
        raise AdapterError(f"{directory / WEIGHTS} has no tensors: save the adapter again")
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for stored, (shape, kind) in tensors.items():
        match = TENSOR.fullmatch(stored)
        if match is None:
            raise AdapterError(f"{directory} has a tensor {stored:.200}, which is of no linear layer's LoRA")
        if len(shape) > 2:
            says = f"{directory} adapts {match[1]:.200}, which is no linear layer"
            raise AdapterError(f"{says}: this version computes adapters of linear layers")
        if len(shape) != 2 or kind not in KIND_BYTES:
            raise AdapterError(f"{directory} has in {stored:.200} no matrix of floats: save it again")
        found.setdefault(match[1], {})[match[2]] = shape
    return {name: adapter_size(directory, name, shapes) for name, shapes in found.items()}


def adapter_size(directory: Path, name: str, shapes: Mapping[str, Sequence[int]]) -> AdapterSize:
    if len(shapes) != 2 or shapes["A"][0] != shapes["B"][1]:
        raise AdapterError(f"{directory} has no two matrices of one rank for {name:.200}: save it again")
    (rank, inputs), (outputs, _) = shapes["A"], shapes["B"]
    if not 1 <= rank <= MOST_RANK and not has_all_experts(name):
        raise AdapterError(f"{directory} has rank {rank} for {name:.200}: this version computes 1 to {MOST_RANK}")
    return AdapterSize(rank, LayerSize(outputs, inputs))


def adaptable_layers(config: ModelConfig) -> dict[str, LayerSize]:
    """Return the linear layers of a model that may have adapters."""
    stems = {name.removesuffix(".weight"): shape for name, shape in tensor_shapes(config).items()}
    return {name: LayerSize(*shape) for name, shape in stems.items() if len(shape) == 2 and name.endswith(LINEAR)}


class CheckedAdapter(NamedTuple):
    """The configuration of an adapter as it was checked, and the tokens that activate it, if there are any."""

    config: bytes
    invocation: tuple[int, ...]


def check_adapter(directory: Path, config: ModelConfig, source: str) -> CheckedAdapter:
    """Return what was checked of an adapter. Raise AdapterError for one that this version does not compute for this
    model, as far as its configuration and the header of its weights tell."""
    stored_bytes = size_of(directory, WEIGHTS, MOST_BYTES)
    try:
        stored_config = read_whole(directory, CONFIG, MOST_CONFIG_BYTES)
        scaling = Scaling.of(directory, stored_config)
        tensors = header_tensors(directory / WEIGHTS)
        sizes = adapter_sizes(directory, tensors)
        for name, one in sizes.items():
            if not has_all_experts(name):
                scaling.factor(name, one.rank)
    except AdapterError:
        raise
    except ModelError as error:
        raise AdapterError(f"{source}: {error}") from error
    data_bytes = sum(math.prod(shape) * KIND_BYTES[kind] for shape, kind in tensors.values())
    if stored_bytes < header_size(directory / WEIGHTS) + data_bytes:
        raise AdapterError(f"{directory / WEIGHTS} is damaged or cut off: save it again")
    for _ in BaseLayers(adaptable_layers(config), config).cuts(sizes, source, scaling.stated):
        pass
    if (largest := max(scaling.invocation, default=0)) >= config.vocab_size:
        says = f"{source} is activated by the token {largest}, and the model has {config.vocab_size}"
        raise AdapterError(f"{says}: it is for another base")
    return CheckedAdapter(stored_config, scaling.invocation)


def size_of(directory: Path, name: str, most: int) -> int:
    """Return the bytes of one of an adapter's files."""
    try:
        found = (directory / name).stat()
    except OSError as error:
        raise AdapterError(f"{directory} is no adapter of PEFT: {name} cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(found.st_mode):
        raise AdapterError(f"{directory} is no adapter of PEFT: {name} is no file")
    if found.st_size > most:
        raise AdapterError(f"{directory / name} has more than {most >> 20} MiB: adapters are smaller")
    return found.st_size


def read_whole(directory: Path, name: str, most: int = MOST_BYTES) -> bytes:
    """Read one of an adapter's files."""
    size_of(directory, name, most)
    try:
        with (directory / name).open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise AdapterError(f"{directory} is no adapter of PEFT: {name} cannot be read ({error.strerror})") from error
    if len(data) > most:
        raise AdapterError(f"{directory / name} has more than {most >> 20} MiB: adapters are smaller")
    return data


def digest_of(config: bytes, weights: Iterator[bytes]) -> str:
    """Return the digest of an adapter's two files, the second in pieces, in hexadecimal."""
    digest = hashlib.sha256(len(config).to_bytes(8, "little") + config)
    for piece in weights:
        digest.update(piece)
    return digest.hexdigest()


def stored_digest(directory: Path, config: bytes | None = None) -> str:
    """Return the digest of an adapter's files without keeping them in memory; of a configuration that was read before,
    where it is given."""
    config = read_whole(directory, CONFIG, MOST_CONFIG_BYTES) if config is None else config
    size_of(directory, WEIGHTS, MOST_BYTES)
    try:
        with (directory / WEIGHTS).open("rb") as file:
            return digest_of(config, iter(lambda: file.read(READ_BYTES), b""))
    except OSError as error:
        raise AdapterError(f"{directory} is no adapter of PEFT: {WEIGHTS} cannot be read ({error.strerror})") from error
