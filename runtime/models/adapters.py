# SPDX-License-Identifier: Apache-2.0
"""The low-rank adapters of a model: which of its linear layers may have one, and the part of each on this rank."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from pontil.gpu_ops.kernels.linear import PackedLinear, Product
from pontil.gpu_ops.kernels.weights.adapters import MatrixAdapters
from pontil.gpu_ops.kernels.weights.arena import Arena
from pontil.gpu_ops.parameters.adapters import LowRank, MadeAdapter, joined, stacked
from pontil.gpu_ops.products.adapters import PlacedAdapters, ProductAdapters, RowAdapters
from pontil.gpu_ops.products.device_adapters import DeviceAdapters
from pontil.runtime.models.config import ModelConfig

HeldAdapters = ProductAdapters | MatrixAdapters | DeviceAdapters


@dataclass(frozen=True, slots=True)
class AdaptedPart:
    """Outputs of a product that stand side by side: these `rows` of one of its linear layers, or of several stacked
    ones, (name, outputs) each."""

    layers: tuple[tuple[str, int], ...]
    rows: range | Tensor

    def made(self, layers: Mapping[str, LowRank], inputs: range) -> LowRank | None:
        """Return what an adapter of some layers adds, of these inputs; None where it has nothing of it."""
        found = joined([(layers.get(name), size) for name, size in self.layers])
        return None if found is None else found.part(self.rows, inputs)


@dataclass(frozen=True, slots=True)
class AdaptedProduct:
    """A product of linear `layers` with one input, (name, outputs) each. This rank computes `parts` of it, of its `own`
    inputs, and `held` has the adapters of these."""

    layers: tuple[tuple[str, int], ...]
    inputs: int
    own: range
    parts: tuple[AdaptedPart, ...]
    held: HeldAdapters

    def made(self, layers: Mapping[str, LowRank], arena: Arena) -> MadeAdapter | None:
        """Lay out this rank's part of an adapter of some layers; None where it has nothing of it."""
        parts = [part.made(layers, self.own) for part in self.parts]
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
