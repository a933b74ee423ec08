# SPDX-License-Identifier: Apache-2.0
"""Tensors that hold several of a model's: all experts' weights in one, or an MLP's gate and up projections.

Files on the hub mostly have a tensor for each expert and product; newer programs may save their fused tensors. No torch
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pontil.runtime.loaders.facts.layout import usual_name
from pontil.runtime.loaders.facts.weight_forms import Shape
from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.config import ModelConfig

# The places of the gate's and the up projection's outputs: of `rows` [experts, outputs, inputs] or of columns [experts,
# inputs, outputs] one behind the other, or every other one of columns.
Form = Literal["rows", "columns", "pairs"]
GATE_UP, DOWN = "gate_up_proj", "down_proj"
STEMS = {GATE_UP: ("gate_proj", "up_proj"), DOWN: ("down_proj",)}
# Endings of fused tensors' names and of the parts' names.
ENDINGS = {"": ".weight", "_bias": ".bias", "_blocks": ".weight_blocks", "_scales": ".weight_scales"}


@dataclass(frozen=True, slots=True)
class FusedPart:
    """A tensor by its usual name: of expert number `expert`, if the first dimension counts experts, the outputs [start,
    end) in steps of `step`, which are columns if it is `transposed`."""

    name: str
    shape: Shape
    expert: int | None
    start: int
    end: int
    step: int = 1
    transposed: bool = False


def tensors_in(config: ModelConfig, stored: str, shape: Shape) -> list[tuple[str, Shape, FusedPart | None]]:
    """The model's tensors that a stored one holds, by their usual names, with their parts of it: none if it is of
    another part of a model of several."""
    architecture = ARCHITECTURES[config.architecture]
    name = usual_name(architecture, stored)
    if name is None:
        return []
    if config.experts is None:
        # The expert of all rows is the only one.
        name = name.replace(".mlp.shared_experts.", ".mlp.")
    parts = parts_of(name, shape, config.experts.count if config.experts else 0, architecture.fused_experts)
    return [(part.name, part.shape, part) for part in parts] or [(name, shape, None)]


def parts_of(name: str, shape: Shape, experts: int, form: Form) -> list[FusedPart]:
    """The parts of a fused tensor; none for any other tensor."""
    prefix, _, last = name.rpartition(".")
    if name.endswith(f".{GATE_UP}.weight") and ".mlp." in name and len(shape) == 2:
        half = shape[0] // 2
        cut = name.removesuffix(f"{GATE_UP}.weight")
        return [
            FusedPart(f"{cut}{stem}.weight", (half, shape[1]), None, place * half, (place + 1) * half)
            for place, stem in enumerate(STEMS[GATE_UP])
        ]
    stem, ending = next(((stem, ending) for stem in STEMS for ending in ENDINGS if last == stem + ending), ("", ""))
    if not stem or not prefix.endswith(".mlp.experts") or len(shape) < 2 or shape[0] != experts:
        return []
    return [part for expert in range(experts) for part in of_expert(prefix, shape, expert, stem, ending, form)]


def of_expert(prefix: str, shape: Shape, expert: int, stem: str, ending: str, form: Form) -> list[FusedPart]:
    transposed = ending == "" and form != "rows"
    rest = (shape[1],) if transposed else shape[2:]
    outputs = shape[-1] if transposed else shape[1]
    names = STEMS[stem]
    size = outputs // len(names)
    pairs = form == "pairs" and len(names) == 2
    return [
        FusedPart(
            f"{prefix}.{expert}.{name}{ENDINGS[ending]}",
            (size, *rest),
            expert,
            place if pairs else place * size,
            outputs if pairs else (place + 1) * size,
            2 if pairs else 1,
            transposed,
        )
        for place, name in enumerate(names)
    ]
