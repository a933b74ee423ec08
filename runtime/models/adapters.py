# SPDX-License-Identifier: Apache-2.0
"""The low-rank adapters of a model: which of its linear layers may have one, and the part of each on this rank."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pontil.gpu_ops.kernels.linear import PackedLinear, Product
from pontil.gpu_ops.kernels.weights.adapters import MatrixAdapters
from pontil.gpu_ops.kernels.weights.arena import Arena
from pontil.gpu_ops.parameters.adapters import LowRank, MadeAdapter, stacked
from pontil.gpu_ops.products.adapters import PlacedAdapters, ProductAdapters, RowAdapters
from pontil.gpu_ops.products.device_adapters import DeviceAdapters
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.partition import Partition, Split

HeldAdapters = ProductAdapters | MatrixAdapters | DeviceAdapters


@dataclass(frozen=True, slots=True)
class AdaptedProduct:
    """A product of linear `layers` with one input, (name, outputs) each. `held` has the adapters of what this rank
    computes of it."""

    layers: tuple[tuple[str, int], ...]
    inputs: int
    split: Split
    partition: Partition
    held: HeldAdapters

    def made(self, layers: Mapping[str, LowRank], arena: Arena) -> MadeAdapter | None:
        """Lay out this rank's part of an adapter of some layers, as it has a part of each of these; None where it has
        nothing of it."""
        inputs = self.split.inputs(self.partition, self.inputs)
        parts = [
            layers[name].part(self.split.outputs(self.partition, outputs), inputs) if name in layers else None
            for name, outputs in self.layers
        ]
        return self.held.made(parts, arena) if any(part is not None for part in parts) else None


@dataclass(frozen=True, slots=True)
class AdaptedExperts:
    """The same product of each of a layer's experts, `count` of them: of linear layers with one input whose names have
    the expert's number where a pattern has {}, (pattern, outputs) each. This rank has its `own` experts, whole."""

    patterns: tuple[tuple[str, int], ...]
    count: int
    own: range
    inputs: int
    held: HeldAdapters

    @property
    def layers(self) -> Iterator[tuple[str, int]]:
        return ((name.format(number), size) for number in range(self.count) for name, size in self.patterns)

    def made(self, layers: Mapping[str, LowRank], arena: Arena) -> MadeAdapter | None:
        """Lay out an adapter of this rank's experts; None where it has nothing of it."""
        parts = [stacked([layers.get(name.format(number)) for number in self.own]) for name, _ in self.patterns]
        return self.held.made(parts, arena) if any(part is not None for part in parts) else None


def attach(held: HeldAdapters, product: Product, place: int | None = None) -> None:
    """Have a product computed with these adapters: with those of a place among several equal products."""
    if isinstance(held, MatrixAdapters):
        assert isinstance(product, PackedLinear)
        product.matrix = held.of(product.matrix)
    elif not isinstance(product, PackedLinear):
        product.adapters = held
        if place is not None and isinstance(held, ProductAdapters):
            product.adapters = PlacedAdapters(held, place)


class ModelAdapters:
    """The adapters of a model by their numbers, which its rows state. No step may be started while they change."""

    def __init__(
        self,
        rows: RowAdapters,
        products: Sequence[AdaptedProduct | AdaptedExperts],
        config: ModelConfig | None = None,
    ) -> None:
        self.rows, self.products, self.config = rows, tuple(products), config
        self.shapes = {name: (outputs, one.inputs) for one in products for name, outputs in one.layers}

    def made(self, layers: Mapping[str, LowRank]) -> MadeAdapter:
        """Lay out an adapter, whose layers were checked. This may be done while others are computed."""
        arena = Arena()
        parts = [part for product in self.products if (part := product.made(layers, arena)) is not None]

        def put(number: int) -> None:
            self.remove(number)
            for part in parts:
                part.put(number)

        return MadeAdapter(sum(part.nbytes for part in parts), put)

    def remove(self, number: int) -> None:
        for product in self.products:
            product.held.remove(number)


NO_ADAPTERS = ModelAdapters(RowAdapters(), ())
