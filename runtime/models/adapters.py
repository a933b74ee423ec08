# SPDX-License-Identifier: Apache-2.0
"""The low-rank adapters of a model: which of its linear layers may have one, and the part of each on this rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pontil.gpu_ops.kernels.weights.adapters import MatrixAdapters
from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.gpu_ops.products.adapters import ProductAdapters, RowAdapters
from pontil.runtime.errors import ModelError
from pontil.runtime.models.partition import Partition, Split

EXPERT = "expert"
FUSED = {".gate_up_proj": (".gate_proj", ".up_proj")}
"""Layers of some models elsewhere that are several here."""


@dataclass(frozen=True, slots=True)
class AdaptedProduct:
    """A product of linear `layers` with one input, (name, outputs) each. `held` has the adapters of what this rank
    computes of it."""

    layers: tuple[tuple[str, int], ...]
    inputs: int
    split: Split
    partition: Partition
    held: ProductAdapters | MatrixAdapters

    def put(self, number: int, layers: Mapping[str, LowRank]) -> None:
        """Set this rank's part of an adapter of some layers, as it has a part of each of these."""
        inputs = self.split.inputs(self.partition, self.inputs)
        parts = [
            layers[name].part(self.split.outputs(self.partition, outputs), inputs) if name in layers else None
            for name, outputs in self.layers
        ]
        if any(part is not None for part in parts):
            self.held.put(number, parts)


class ModelAdapters:
    """The adapters of a model by their numbers, which its rows state. No step may run while they change."""

    def __init__(self, rows: RowAdapters, products: Sequence[AdaptedProduct]) -> None:
        self.rows, self.products = rows, tuple(products)
        self.shapes = {name: (outputs, one.inputs) for one in products for name, outputs in one.layers}

    def own(self, layers: Mapping[str, LowRank], source: object) -> dict[str, LowRank]:
        """Return an adapter by the names of this model's layers, some of which may be parts of one elsewhere. Raise
        ModelError unless all of them are of this model and may have adapters."""
        if not self.shapes:
            raise ModelError("adapters are computed on CPUs: leave out --adapter, or start the workers on cpu")
        own = {name: one for whole, given in layers.items() for name, one in self.parts(whole, given)}
        for name, one in own.items():
            shape, found = self.shapes.get(name), (len(one.up), one.down.shape[1])
            if EXPERT in name:
                raise ModelError(f"{source} adapts {name}: this version adapts attention and MLPs, and no experts")
            if shape is None:
                raise ModelError(f"{source} adapts {name}, which this model does not have, or not as a linear layer")
            if shape != found:
                says = f"{source} is for another base: {name} has {found[1]} inputs and {found[0]} outputs there"
                raise ModelError(f"{says}, and {shape[1]} and {shape[0]} here")
        return own

    def parts(self, name: str, one: LowRank) -> list[tuple[str, LowRank]]:
        """Return a layer, or the layers of this model whose outputs stand one after the other in it."""
        for whole, endings in FUSED.items():
            names = [name.removesuffix(whole) + ending for ending in endings]
            if name.endswith(whole) and all(part in self.shapes for part in names):
                ends = [0, *accumulate(self.shapes[part][0] for part in names)]
                if ends[-1] != len(one.up):
                    break
                rows = [range(start, end) for start, end in pairwise(ends)]
                inputs = range(one.down.shape[1])
                return [(part, one.part(outputs, inputs)) for part, outputs in zip(names, rows, strict=True)]
        return [(name, one)]

    def put(self, number: int, layers: Mapping[str, LowRank]) -> None:
        """Set the adapter of that number, whose layers were checked."""
        for product in self.products:
            product.put(number, layers)

    def remove(self, number: int) -> None:
        for product in self.products:
            product.held.remove(number)


NO_ADAPTERS = ModelAdapters(RowAdapters(), ())
