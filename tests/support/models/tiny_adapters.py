# SPDX-License-Identifier: Apache-2.0
"""Random adapters of tiny models, as PEFT stores them."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny import rig, sequence
from torch import Tensor
from transformers import PreTrainedModel

from pontil.gpu_ops.parameters.adapters import NO_ADAPTER, LowRank
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.sequences.prompt_keys import SaltedPrefix, UsedAdapter
from pontil.runtime.engine.sequences.sequence import Sequence as EngineSequence
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.loaders.facts.adapter_facts import adaptable_layers
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.model import Model

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj"]}
DIGESTS = ("aa" * 32, "bb" * 32)


def random_layers(model: Model, seed: int, rank: int = 4, experts: bool = True) -> dict[str, LowRank]:
    """An adapter of every layer of a model that may have one, or all but experts, but every fifth."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: shape for name, shape in model.adapters.shapes.items() if experts or ".experts." not in name}
    return {
        name: LowRank(
            torch.randn(rank, inputs, generator=generator) * inputs**-0.5,
            torch.randn(outputs, rank, generator=generator) * 0.25,
        )
        for place, (name, (outputs, inputs)) in enumerate(shapes.items())
        if place % 5 != seed % 5
    }


def with_adapter(one: EngineSequence, number: int, start: int = 0) -> EngineSequence:
    """Have a sequence computed with the adapter of a number, which is one of two, from a position on."""
    if number != NO_ADAPTER:
        one.prefix = SaltedPrefix("", UsedAdapter(DIGESTS[number], number), start)
    return one


def logits_of(model: Model, number: int, prompt: list[int], start: int = 0) -> Tensor:
    """Return the logits of all positions of a prompt that is computed with the adapter of a number, from one on."""
    ours, one = rig(model), with_adapter(sequence(f"{number}", prompt, 12), number, start)
    ours.scheduler.add(one)
    ours.scheduler.admit()
    ours.scheduler.memory.grow(one, len(prompt))
    (tile,) = Batch((Span(one, 0, len(prompt)),)).mixed_tiles()
    return ours.runner.tiles.project(ours.runner.tiles.forward(plan_of(tile, [*range(tile.rows)], [], [])))


def write_adapter(directory: Path, layers: Mapping[str, LowRank], **config: object) -> Path:
    """Write them, whose factor is 2, as it is by PEFT's configuration here."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, one in layers.items():
        prefix = f"base_model.model.{name}"
        tensors |= {f"{prefix}.lora_A.weight": one.down.clone(), f"{prefix}.lora_B.weight": one.up / 2}
    save_file(tensors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    return directory


def write_some(folder: Path, config: ModelConfig, names: Sequence[str] = ("one", "two")) -> tuple[str, ...]:
    """Write adapters of all layers of a model, each into a directory of its name; return a worker's options for
    them."""
    for seed, name in enumerate(names):
        generator = torch.Generator().manual_seed(seed)
        layers = {
            layer: LowRank(
                torch.randn(4, size.inputs, generator=generator) * size.inputs**-0.5,
                torch.randn(size.outputs, 4, generator=generator),
            )
            for layer, size in adaptable_layers(config).items()
        }
        write_adapter(folder / name, layers)
    return tuple(f"{name}={folder / name}" for name in names)


def merge(model: PreTrainedModel, layers: Mapping[str, LowRank], factor: float = 1.0) -> None:
    """Add an adapter to the weights of its layers."""
    with torch.no_grad():
        for name, one in layers.items():
            weight_part(model, name).add_(factor * one.up @ one.down)


def weight_part(model: PreTrainedModel, name: str) -> Tensor:
    """Return the weight of a layer, or the part of the one that has gates and ups together, or all experts."""
    above, _, last = name.rpartition(".")
    weights: dict[str, Tensor] = dict(model.named_parameters())
    if (expert := re.fullmatch(r"(.+\.)mlp\.experts\.(\d+)\.(\w+)_proj", name)) is not None:
        return expert_part(weights, expert[1], int(expert[2]), expert[3])
    # Bamba and Granite have other names for their MLPs, and Granite and GPT-OSS for what chooses experts.
    above = above.replace(".mlp.shared_experts", ".mlp") if "granite" in model.config.model_type else above
    stem = f"{above}.{last}"
    replaced = (
        (".mlp.down_proj", ".shared_mlp.output_linear"), (".mlp.", ".feed_forward."), (".mlp.gate", ".mlp.router"),
        (".mlp.gate", ".block_sparse_moe.router"),
    )  # fmt: skip
    for known in (stem, *(stem.replace(*pair) for pair in replaced)):
        if (own := weights.get(f"{known}.weight")) is not None:
            return own
    joined = f"{above}.gate_up_proj", f"{above.removesuffix('mlp')}shared_mlp.input_linear"
    gate, up = next(weights[f"{one}.weight"] for one in joined if f"{one}.weight" in weights).chunk(2)
    return up if last == "up_proj" else gate


def expert_part(weights: Mapping[str, Tensor], layer: str, number: int, part: str) -> Tensor:
    """Return an expert's weight within the parameter of all: GPT-OSS has inputs first, and gates and ups by turns."""
    stem = next(
        stem for stem in (f"{layer}mlp.experts", f"{layer}block_sparse_moe.experts") if f"{stem}.down_proj" in weights
    )
    whole = weights[f"{stem}.{'down' if part == 'down' else 'gate_up'}_proj"][number]
    pairs = f"{stem}.down_proj_bias" in weights
    whole, place = whole.T if pairs else whole, int(part == "up")
    if part == "down":
        return whole
    return whole[place::2] if pairs else whole.chunk(2)[place]
