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
    Scaling,
    adapter_sizes,
    digest_of,
    read_whole,
)
from pontil.runtime.loaders.facts.adapter_layers import (
    AdapterSize,
    BaseLayers,
    LayerCut,
    LayerSize,
    Stated,
    has_all_experts,
)
from pontil.runtime.models.config import ModelConfig

KINDS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """The adapted linear layers by their names, and a digest of both files, in hexadecimal. Matrices of all experts of
    a layer are as they are stored, and have no factor yet, which is `stated`. The tokens of its `invocation` activate
    it, if there are any."""

    digest: str
    layers: Mapping[str, LowRank]
    invocation: tuple[int, ...] = ()
    stated: Stated = Stated(lambda name, rank: 1.0)

    @property
    def nbytes(self) -> int:
        return sum(one.down.nbytes + one.up.nbytes for one in self.layers.values())

    def own(
        self, shapes: Mapping[str, tuple[int, int]], source: object, config: ModelConfig | None = None
    ) -> dict[str, LowRank]:
        """Return it by the names of a model's layers that may have adapters, (outputs, inputs) each, some of which may
        be parts of one elsewhere. Raise AdapterError unless all of its layers are among these."""
        sizes = {
            name: AdapterSize(one.rank, LayerSize(len(one.up), one.down.shape[1])) for name, one in self.layers.items()
        }
        base = BaseLayers({name: LayerSize(*shape) for name, shape in shapes.items()}, config)
        return {cut.own: part_of(self.layers[cut.name], cut) for cut in base.cuts(sizes, source, self.stated)}


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
    factors = {name: 1.0 if has_all_experts(name) else scaling.factor(name, size.rank) for name, size in sizes.items()}
    layers = {name: low_rank(tensors, name, factor) for name, factor in factors.items()}
    return PeftAdapter(digest, layers, scaling.invocation, scaling.stated)


def read_tensors(path: Path, data: bytes) -> dict[str, torch.Tensor]:
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise AdapterError(f"{path} is damaged or cut off ({error}): save it again") from error


def low_rank(tensors: Mapping[str, torch.Tensor], name: str, factor: float) -> LowRank:
    down, up = (tensors[f"base_model.model.{name}.lora_{letter}.weight"].float() for letter in "AB")
    return LowRank(down.contiguous(), up * factor)


def part_of(whole: LowRank, cut: LayerCut) -> LowRank:
    """Return the part of a layer's adapter, or of one of all experts, that is a layer here."""
    if not cut.experts:
        return LowRank(whole.down, whole.up[cut.outputs])
    rank = whole.rank // cut.experts
    down, up = whole.down[cut.expert * rank : (cut.expert + 1) * rank], whole.up[:, cut.expert :: cut.experts]
    if cut.swapped:
        down, up = up.T, down.T
    return LowRank(down, up[cut.outputs] * cut.factor)
