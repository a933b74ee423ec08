# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters as PEFT stores them: adapter_config.json, and adapter_model.safetensors beside it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import number, section, short

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOST_RANK = 256
MOST_BYTES = 2 << 30
"""The file is read at once, so that its digest is that of the numbers."""
TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
PLAIN_KEY = re.compile(r"[\w.]+")
KINDS = (torch.float32, torch.bfloat16, torch.float16)
# Fields of kinds that this version does not compute, and the kinds.
UNSUPPORTED = {
    "use_dora": "is of the kind DoRA",
    "modules_to_save": "brings whole modules of its own (modules_to_save)",
    "trainable_token_indices": "brings tokens of its own (trainable_token_indices)",
    "target_parameters": "adapts parameters that are no linear layers (target_parameters)",
    "alora_invocation_tokens": "is activated by tokens (aLoRA)",
    "lora_bias": "has biases of its own (lora_bias)",
    "fan_in_fan_out": "has transposed weights (fan_in_fan_out)",
    "megatron_config": "is divided as Megatron does",
    "layer_replication": "repeats layers (layer_replication)",
    "use_qalora": "is of the kind QALoRA",
}


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """The adapted linear layers by their names, and a digest of both files, in hexadecimal."""

    digest: str
    layers: Mapping[str, LowRank]

    @property
    def nbytes(self) -> int:
        return sum(one.down.nbytes + one.up.nbytes for one in self.layers.values())


def read_adapter(directory: Path) -> PeftAdapter:
    """Read an adapter. Raises ModelError for one that is damaged, or that this version does not compute."""
    config, weights = (read_whole(directory, name) for name in (CONFIG, WEIGHTS))
    digest = hashlib.sha256(len(config).to_bytes(8, "little") + config + weights).hexdigest()
    scaling, tensors = Scaling.of(directory, config), read_tensors(directory / WEIGHTS, weights)
    if not tensors:
        raise ModelError(f"{directory / WEIGHTS} has no tensors: save the adapter again")
    return PeftAdapter(
        digest, {name: low_rank(name, pair, scaling) for name, pair in pairs(directory, tensors).items()}
    )


def read_whole(directory: Path, name: str) -> bytes:
    path = directory / name
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{directory} is no adapter of PEFT: {name} cannot be read ({error.strerror})") from error
    if len(data) > MOST_BYTES:
        raise ModelError(f"{path} has more than {MOST_BYTES >> 30} GiB: adapters are smaller")
    return data


@dataclass(frozen=True, slots=True)
class Scaling:
    """The factors of an adapter's layers, and the ranks that its configuration states; those of single layers, or of
    all with an ending of their name, in patterns."""

    rank: int
    alpha: float
    by_root: bool
    ranks: Mapping[str, Any]
    alphas: Mapping[str, Any]

    @classmethod
    def of(cls, directory: Path, config: bytes) -> Scaling:
        path = directory / CONFIG
        try:
            data = json.loads(config)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path} is not JSON: save the adapter again") from error
        if not isinstance(data, dict):
            raise ModelError(f"{path} holds no JSON object: save the adapter again")
        if data.get("peft_type") != "LORA":
            says = f"{directory} is an adapter of the type {short(data.get('peft_type'))}"
            raise ModelError(f"{says}: this version computes LORA only")
        for key, what in UNSUPPORTED.items():
            if data.get(key):
                raise ModelError(f"{directory} {what}: this version computes plain LoRA only")
        if data.get("bias", "none") != "none":
            raise ModelError(f"{directory} has biases of its own (bias = {short(data['bias'])}): train it with none")
        ranks, alphas = section(data, "rank_pattern"), section(data, "alpha_pattern")
        for key in (*ranks, *alphas):
            if not PLAIN_KEY.fullmatch(key):
                raise ModelError(f"{path} has the pattern {short(key)}: this version reads names of layers only")
        return cls(whole_rank(data, "r"), number(data, "lora_alpha"), bool(data.get("use_rslora")), ranks, alphas)

    def factor(self, name: str, rank: int) -> float:
        """Return what a layer's product is multiplied by. Raises ModelError where the tensors have another rank than
        the configuration says."""
        stated = whole_rank(self.ranks, key) if (key := key_for(self.ranks, name)) else self.rank
        if rank != stated:
            raise ModelError(f"the adapter of {name} has rank {rank}, and {CONFIG} says {stated}: save it again")
        alpha = number(dict(self.alphas), key) if (key := key_for(self.alphas, name)) else self.alpha
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def key_for(pattern: Mapping[str, Any], name: str) -> str | None:
    """Return the first key that is a layer's name or the end of it, as PEFT does."""
    return next((key for key in pattern if name == key or name.endswith(f".{key}")), None)


def whole_rank(data: Mapping[str, Any], key: str) -> int:
    rank = data.get(key)
    if type(rank) is not int or not 1 <= rank <= MOST_RANK:
        raise ModelError(f"the adapter has the rank {short(rank)}: this version computes 1 to {MOST_RANK}")
    return rank


def read_tensors(path: Path, data: bytes) -> dict[str, torch.Tensor]:
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelError(f"{path} is damaged or cut off ({error}): save it again") from error


def pairs(directory: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Return both matrices of each layer by their letters, as float32."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for stored, tensor in tensors.items():
        match = TENSOR.fullmatch(stored)
        if match is None:
            raise ModelError(f"{directory} has a tensor {stored:.200}, which is of no linear layer's LoRA")
        if tensor.ndim != 2 or tensor.dtype not in KINDS or not tensor.isfinite().all():
            raise ModelError(f"{directory} has in {stored:.200} no matrix of finite floats: save it again")
        found.setdefault(match[1], {})[match[2]] = tensor.float()
    for name, pair in found.items():
        if len(pair) != 2 or len(pair["A"]) != pair["B"].shape[1]:
            raise ModelError(f"{directory} has no two matrices of one rank for {name:.200}: save it again")
        if not 1 <= len(pair["A"]) <= MOST_RANK:
            says = f"{directory} has rank {len(pair['A'])} for {name:.200}"
            raise ModelError(f"{says}: this version computes 1 to {MOST_RANK}")
    return found


def low_rank(name: str, pair: Mapping[str, torch.Tensor], scaling: Scaling) -> LowRank:
    return LowRank(pair["A"].contiguous(), pair["B"] * scaling.factor(name, len(pair["A"])))
