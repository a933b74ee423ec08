# SPDX-License-Identifier: Apache-2.0
"""Adapters of the model that hashes: files as PEFT saves them, which the product examines, reads and compares by their
digest. In place of matrices each has a number that is mixed into the hashes of all that is computed with it."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from virtual_time import HERE

from pontil.gpu_ops.parameters.adapters import NO_ADAPTER, LowRank, MadeAdapter
from pontil.gpu_ops.products.adapters import RowAdapters
from pontil.http.vllm import adapters as routes
from pontil.runtime.loaders.facts.adapter_facts import adaptable_layers
from pontil.runtime.models.adapters import ModelAdapters
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.probe.adapters import ExaminedAdapter, examine_adapter

LAYER = "model.layers.0.self_attn.q_proj"
# The directories of adapters, and of one with numbers that are not finite: workers find that, and proxies do not.
GOOD, BROKEN = ("first", "second", "third", "fourth", "fifth"), "broken"
# The tokens that activate some of them. Prompts have one of these often, and two seldom, as answers do.
INVOCATIONS = {"second": [9], "third": [9, 14], "fifth": [40]}


class HashAdapters(ModelAdapters):
    """The adapters in a worker's memory: the `values` of those that are, by their numbers. One is mixed into the hash
    before the first position that is computed with it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(RowAdapters(), ())
        size = adaptable_layers(config)[LAYER]
        self.shapes = {LAYER: (size.outputs, size.inputs)}
        self.values: dict[int, int] = {}

    def made(self, layers: Mapping[str, LowRank]) -> MadeAdapter:
        value = value_of(layers[LAYER].up)
        return MadeAdapter(layers[LAYER].nbytes, lambda number: self.values.update({number: value}))

    def remove(self, number: int) -> None:
        self.values.pop(number, None)

    def salt(self, number: int, source: object) -> int:
        """Return what is mixed into the hashes of a row of this number; 0 for one without an adapter."""
        if number == NO_ADAPTER:
            return 0
        if number not in self.values:
            HERE.world.violate(f"every_row_has_its_adapter: that of {source} is not in memory")
        return self.values.get(number, 0)


def value_of(up: torch.Tensor) -> int:
    return zlib.crc32(up.contiguous().numpy().tobytes())


def write_adapters(folder: Path, config: ModelConfig) -> None:
    """Write all of them, each into a directory of its name."""
    size = adaptable_layers(config)[LAYER]
    for place, name in enumerate((*GOOD, BROKEN)):
        directory = folder / name
        directory.mkdir(parents=True)
        up = torch.full((size.outputs, 1), torch.nan if name == BROKEN else 1.0 + place)
        prefix = f"base_model.model.{LAYER}"
        tensors = {f"{prefix}.lora_A.weight": torch.ones(1, size.inputs), f"{prefix}.lora_B.weight": up}
        save_file(tensors, directory / "adapter_model.safetensors")
        told: dict[str, Any] = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}
        told |= {"alora_invocation_tokens": INVOCATIONS.get(name)}
        (directory / "adapter_config.json").write_text(json.dumps(told))


def values_of(config: ModelConfig) -> dict[str, int]:
    """Return the value of each adapter, by its directory: the oracle."""
    outputs = adaptable_layers(config)[LAYER].outputs
    return {name: value_of(torch.full((outputs, 1), 1.0 + place)) for place, name in enumerate(GOOD)}


def starts_of(config: ModelConfig, prompt: Sequence[int]) -> dict[int, int]:
    """Return the positions from which on a prompt is computed with the adapters of these values, those that are: the
    oracle."""
    starts, values = dict[int, int](), values_of(config)
    for name, value in values.items():
        tokens = INVOCATIONS.get(name, [])
        places = [at for at in range(len(prompt)) if tokens and list(prompt[at : at + len(tokens)]) == tokens]
        if places or not tokens:
            starts[value] = places[-1] if places else 0
    return starts


def bytes_of(config: ModelConfig) -> int:
    """Return the memory of one of them."""
    return 4 * sum(adaptable_layers(config)[LAYER])


def examine_for(model: Path) -> None:
    """Have proxies examine adapters for the model in this directory, as theirs has none."""

    def examined(directory: str, allowed: Sequence[str], _: Path) -> ExaminedAdapter:
        return examine_adapter(directory, allowed, model)

    untyped: Any = routes
    untyped.examine_adapter = examined
