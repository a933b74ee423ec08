# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters as PEFT stores them: adapter_config.json, and adapter_model.safetensors beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.runtime.errors import AdapterError
from pontil.runtime.loaders.facts.adapter_facts import (
    CONFIG,
    MOST_CONFIG_BYTES,
    WEIGHTS,
    LayerSize,
    Scaling,
    adapter_sizes,
    digest_of,
    own_layers,
    read_whole,
)

KINDS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """The adapted linear layers by their names, and a digest of both files, in hexadecimal. The tokens of its
    `invocation` activate it, if there are any."""

    digest: str
    layers: Mapping[str, LowRank]
    invocation: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(one.down.nbytes + one.up.nbytes for one in self.layers.values())

    def own(self, shapes: Mapping[str, tuple[int, int]], source: object) -> dict[str, LowRank]:
        """Return it by the names of a model's layers that may have adapters, (outputs, inputs) each, some of which may
        be parts of one elsewhere. Raise AdapterError unless all of its layers are among these."""
        sizes = {name: LayerSize(len(one.up), one.down.shape[1]) for name, one in self.layers.items()}
        model = {name: LayerSize(*shape) for name, shape in shapes.items()}
        return {
            own: self.layers[name].part(outputs, range(sizes[name].inputs))
            for name, own, outputs in own_layers(sizes, model, source)
        }


def read_adapter(directory: Path) -> PeftAdapter:
    """Read an adapter. Raises AdapterError for one that is damaged, or that this version does not compute."""
    config, weights = read_whole(directory, CONFIG, MOST_CONFIG_BYTES), read_whole(directory, WEIGHTS)
    digest = digest_of(config, iter((weights,)))
    scaling, tensors = Scaling.of(directory, config), read_tensors(directory / WEIGHTS, weights)
    sizes = adapter_sizes(
        directory, {name: (tuple(one.shape), KINDS.get(one.dtype, "")) for name, one in tensors.items()}
    )
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise AdapterError(f"{directory} has in {name:.200} numbers that are not finite: save it again")
    layers = {name: low_rank(tensors, name, scaling.factor(name, size.rank)) for name, size in sizes.items()}
    return PeftAdapter(digest, layers, scaling.invocation)


def read_tensors(path: Path, data: bytes) -> dict[str, torch.Tensor]:
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise AdapterError(f"{path} is damaged or cut off ({error}): save it again") from error


def low_rank(tensors: Mapping[str, torch.Tensor], name: str, factor: float) -> LowRank:
    down, up = (tensors[f"base_model.model.{name}.lora_{letter}.weight"].float() for letter in "AB")
    return LowRank(down.contiguous(), up * factor)
