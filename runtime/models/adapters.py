# SPDX-License-Identifier: Apache-2.0
"""The low-rank adapters of a model: which of its linear layers may have one, and the part of each on this rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pontil.gpu_ops.kernels.weights.adapters import MatrixAdapters
from pontil.gpu_ops.kernels.weights.arena import Arena
from pontil.gpu_ops.parameters.adapters import LowRank, MadeAdapter
from pontil.gpu_ops.products.adapters import ProductAdapters, RowAdapters
from pontil.gpu_ops.products.device_adapters import DeviceAdapters
from pontil.runtime.models.partition import Partition, Split

EXPERT = "expert"


@dataclass(frozen=True, slots=True)
class AdaptedProduct:
    """A product of linear `layers` with one input, (name, outputs) each. `held` has the adapters of what this rank
    computes of it."""

    layers: tuple[tuple[str, int], ...]
    inputs: int
    split: Split
    partition: Partition
    held: ProductAdapters | MatrixAdapters | DeviceAdapters

    def made(self, layers: Mapping[str, LowRank], arena: Arena) -> MadeAdapter | None:
        """Lay out this rank's part of an adapter of some layers, as it has a part of each of these; None where it has
        nothing of it."""
        inputs = self.split.inputs(self.partition, self.inputs)
        parts = [
            layers[name].part(self.split.outputs(self.partition, outputs), inputs) if name in layers else None
            for name, outputs in self.layers
        ]
        return self.held.made(parts, arena) if any(part is not None for part in parts) else None


class ModelAdapters:
    """The adapters of a model by their numbers, which its rows state. No step may be started while they change."""

    def __init__(self, rows: RowAdapters, products: Sequence[AdaptedProduct]) -> None:
        self.rows, self.products = rows, tuple(products)
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
