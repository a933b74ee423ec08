# SPDX-License-Identifier: Apache-2.0
"""The layers of a model that an adapter of PEFT adapts, by the names and shapes that it has there. No torch here.

The experts of a layer are mostly two parameters of three dimensions in transformers. PEFT (`target_parameters`) has an
adapter of such a parameter [experts, first, second] in two matrices: A [experts * rank, ...], where an expert's ranks
are neighbours, and B [..., rank * experts], where a rank's experts are. Until 0.18 A has the numbers of the first
dimension, whatever it counts, and since 0.19 the inputs. That of the module's first parameter has the name of the
module with `base_layer` behind it if the second has one too, so that sizes tell which is which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from pontil.runtime.errors import AdapterError
from pontil.runtime.loaders.facts.layout import usual_name
from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.config import ModelConfig

MOST_RANK = 256
EXPERTS = ".mlp.experts"
WRAPPED = ".base_layer"
ALL_EXPERTS = (".experts", ".block_sparse_moe.input_linear", ".block_sparse_moe.output_linear")
"""Ends of names of modules that have a parameter of all experts; Granite's older ones have one each."""
GATE_UP, DOWN = "gate_up_proj", "down_proj"
FUSED = {".gate_up_proj": (".gate_proj", ".up_proj")}
"""Layers of some models elsewhere that are several here."""
INPUTS_FIRST = (0, 19)
"""The version of PEFT since which the first matrix has the inputs."""


class LayerSize(NamedTuple):
    """The numbers of a linear layer."""

    outputs: int
    inputs: int


class AdapterSize(NamedTuple):
    """The numbers of one layer's adapter, or of all experts' in one, whose ranks are added up."""

    rank: int
    layer: LayerSize


class LayerCut(NamedTuple):
    """The adapter of a layer with this model's `own` name, within the one of a `name` elsewhere: some outputs. In one
    of several `experts` it is that of a number, whose product is multiplied by the `factor`, and the two matrices may
    be `swapped`: each is the transposed other one."""

    name: str
    own: str
    outputs: slice
    experts: int = 0
    expert: int = 0
    factor: float = 1.0
    swapped: bool = False


class Stated(NamedTuple):
    """The facts that an adapter's configuration states of experts: the `factor` for the name of a parameter and a rank,
    and the `version` of PEFT that saved it, if it does."""

    factor: Callable[[str, int], float]
    version: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ExpertParameter:
    """An adapter of one parameter of a layer's experts, whose gates have so many outputs and inputs. It is `swapped`,
    or not, or its sizes do not tell."""

    name: str
    module: str
    stem: str
    rank: int
    experts: int
    gate: LayerSize
    swapped: bool | None


@dataclass(frozen=True, slots=True)
class BaseLayers:
    """The layers of a model that may have adapters, by its own names. Without a configuration other models' names for
    them are not known."""

    shapes: Mapping[str, LayerSize]
    config: ModelConfig | None = None

    def cuts(self, sizes: Mapping[str, AdapterSize], source: object, stated: Stated) -> Iterator[LayerCut]:
        """Yield for each of an adapter's layers this model's name of it, or of each of those that stand in it. Raise
        AdapterError unless all of them are of this model, and each is there once."""
        found = set[str]()
        parameters = [self.parameter(name, one, source) for name, one in sizes.items() if has_all_experts(name)]
        sure = {one.swapped for one in parameters if one.swapped is not None}
        of_experts = (
            cut
            for one in parameters
            for cut in self.expert_cuts(one, stated.factor, self.is_swapped(one, sure, stated.version, source))
        )
        for cuts in (self.plain_cuts(sizes, source), of_experts):
            for cut in cuts:
                if cut.own in found:
                    raise AdapterError(f"{source} adapts {cut.own} twice: save it again")
                found.add(cut.own)
                yield cut

    def own_name(self, name: str) -> str:
        """Return this model's name of a layer elsewhere."""
        if self.config is None:
            return name
        usual = usual_name(ARCHITECTURES[self.config.architecture], f"{name}.weight")
        own = name if usual is None else usual.removesuffix(".weight")
        return own if self.config.experts else own.replace(".mlp.shared_experts.", ".mlp.")

    def plain_cuts(self, sizes: Mapping[str, AdapterSize], source: object) -> Iterator[LayerCut]:
        for whole, (_, (outputs, inputs)) in sizes.items():
            if has_all_experts(whole):
                continue
            for name, part in self.parts_of(self.own_name(whole), outputs):
                shape, found = self.shapes.get(name), LayerSize(part.stop - part.start, inputs)
                if shape is None:
                    raise self.missing(name, source)
                if shape != found:
                    says = f"{source} is for another base: {name} has {found.inputs} inputs and {found.outputs} outputs"
                    raise AdapterError(f"{says} there, and {shape.inputs} and {shape.outputs} here")
                yield LayerCut(whole, name, part)

    def missing(self, name: str, source: object) -> AdapterError:
        if self.config is not None and self.config.experts and not any(f"{EXPERTS}." in own for own in self.shapes):
            says = f"{source} adapts experts ({name}), and ranks that share them have rows of their own here"
            return AdapterError(f"{says}: leave --data-parallel-attention out")
        return AdapterError(f"{source} adapts {name}, which this model does not have, or not as a linear layer")

    def parts_of(self, name: str, outputs: int) -> list[tuple[str, slice]]:
        for whole, endings in FUSED.items():
            names = [name.removesuffix(whole) + ending for ending in endings]
            if name.endswith(whole) and all(part in self.shapes for part in names):
                ends = [0, *accumulate(self.shapes[part].outputs for part in names)]
                if ends[-1] == outputs:
                    return [(part, slice(*rows)) for part, rows in zip(names, pairwise(ends), strict=True)]
        return [(name, slice(0, outputs))]

    def parameter(self, name: str, size: AdapterSize, source: object) -> ExpertParameter:
        """Return which parameter of its experts an adapter is for. Raises AdapterError."""
        module = name.removesuffix(WRAPPED)
        stem = self.own_name(module).partition(f"{EXPERTS}.")[0].removesuffix(EXPERTS) + EXPERTS
        gate, experts = self.shapes.get(f"{stem}.0.gate_proj"), 0
        while f"{stem}.{experts}.gate_proj" in self.shapes:
            experts += 1
        if gate is None:
            raise self.missing(name, source)
        wanted = {GATE_UP: LayerSize(2 * gate.outputs, gate.inputs), DOWN: LayerSize(gate.inputs, gate.outputs)}
        stored, swapped = size.layer, LayerSize(*reversed(size.layer))
        for parameter, own in wanted.items():
            if own in (stored, swapped):
                if size.rank % experts:
                    says = f"{source} is for another base: {name} has {size.rank} ranks of all experts together"
                    raise AdapterError(f"{says}, which is no multiple of the {experts} experts here")
                way = None if stored == swapped else own == swapped
                return ExpertParameter(name, f"{module}.{parameter}", stem, size.rank // experts, experts, gate, way)
        says = f"{source} is for another base: the matrices of {name} have {stored.inputs} and {stored.outputs} numbers"
        raise AdapterError(f"{says} beside their ranks, and experts here {gate.inputs} inputs and {gate.outputs} gates")

    def is_swapped(
        self, one: ExpertParameter, sure: set[bool], version: tuple[int, int] | None, source: object
    ) -> bool:
        """Return whether the matrices are swapped, as those of all parameters are alike if one's sizes tell. In a model
        whose parameters have the inputs first they never are. Raises AdapterError."""
        if one.swapped is not None:
            return one.swapped
        if len(sure) == 1:
            return next(iter(sure))
        if self.form != "rows":
            return False
        if version is None:
            says = f"the sizes in {source} do not tell which matrix of {one.module} has its inputs"
            raise AdapterError(f"{says}: save it by a PEFT that states its peft_version in the configuration")
        return version < INPUTS_FIRST

    @property
    def form(self) -> str:
        return "rows" if self.config is None else ARCHITECTURES[self.config.architecture].fused_experts

    def expert_cuts(
        self, one: ExpertParameter, factor_of: Callable[[str, int], float], swapped: bool
    ) -> Iterator[LayerCut]:
        """Yield the layers of a parameter. Raises AdapterError for other ranks than the configuration states."""
        if not 1 <= one.rank <= MOST_RANK:
            says = f"the adapter of {one.module} has rank {one.rank} for each of {one.experts} experts"
            raise AdapterError(f"{says}: this version computes 1 to {MOST_RANK}")
        factor, inner = factor_of(one.module, one.rank), one.gate.outputs
        parts = {"down_proj": slice(0, one.gate.inputs)}
        if one.module.endswith(GATE_UP):
            parts = {"gate_proj": slice(0, inner), "up_proj": slice(inner, 2 * inner)}
            if self.form == "pairs":
                parts = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
        for expert in range(one.experts):
            for part, outputs in parts.items():
                own = f"{one.stem}.{expert}.{part}"
                yield LayerCut(one.name, own, outputs, one.experts, expert, factor, swapped)


def has_all_experts(name: str) -> bool:
    """Return whether an adapter of that name, elsewhere, is one of all experts of a layer."""
    return name.removesuffix(WRAPPED).endswith(ALL_EXPERTS)
