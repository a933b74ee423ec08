# SPDX-License-Identifier: Apache-2.0
"""The places that the products of a model get for low-rank adapters, as they are made."""

from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from pontil.gpu_ops.kernels.weights.adapters import MatrixAdapters
from pontil.gpu_ops.products.adapters import ProductAdapters, RowAdapters
from pontil.gpu_ops.products.device_adapters import DeviceAdapters
from pontil.runtime.models.adapters import AdaptedExperts, AdaptedPart, AdaptedProduct, HeldAdapters
from pontil.runtime.models.config import ExpertConfig
from pontil.runtime.models.partition import PANEL, Partition, Split

EXPERTS = ".experts."
"""A part of the names of layers of which each expert has its own."""


class AdapterPlaces:
    """Makes the places of a rank's products, which are `packed` for kernels, or are on a device; there they are made
    only where adapters may come. `rows` are those of a model's tile, and `expert_rows` those that one of its experts
    computes now."""

    def __init__(
        self, partition: Partition, device: torch.device, dtype: torch.dtype, packed: bool, on_devices: bool
    ) -> None:
        self.partition, self.device, self.dtype, self.packed = partition, device, dtype, packed
        self.has_any = on_devices or device.type == "cpu"
        self.rows, self.expert_rows = RowAdapters(device), RowAdapters(device)
        self.products: list[AdaptedProduct | AdaptedExperts] = []

    def of(
        self,
        inputs: int,
        parts: Sequence[tuple[str, int]],
        split: Split,
        *,
        alternate: bool = False,
        dtype: torch.dtype | None = None,
    ) -> AdaptedProduct | None:
        """Return the place of a product of these linear layers, computed in a `dtype` that is not the model's, if there
        is one; None where there can be none."""
        if not self.has_any or any(EXPERTS in name for name, _ in parts):
            return None
        own = [AdaptedPart((part,), split.outputs(self.partition, part[1])) for part in parts]
        held = self.held([len(part.rows) for part in own], alternate=alternate, dtype=dtype)
        made = AdaptedProduct(tuple(parts), inputs, split.inputs(self.partition, inputs), tuple(own), held)
        self.products.append(made)
        return made

    def ordered(self, inputs: int, layers: Sequence[tuple[str, int]], order: Sequence[int]) -> AdaptedProduct | None:
        """Return the place of a product that has these outputs of stacked linear layers, in this order; None where
        there can be none. Panels of kernels have one part each: layers that share one are a part together."""
        if not self.has_any:
            return None
        ends = list(accumulate(size for _, size in layers))
        owners, own = [bisect(ends, number) for number in order], list[AdaptedPart]()
        for first, end in runs(owners, PANEL if self.packed else 1):
            some = layers[min(owners[first:end]) : max(owners[first:end]) + 1]
            behind = ends[min(owners[first:end])] - some[0][1]
            rows = torch.tensor([number - behind for number in order[first:end]], dtype=torch.int32)
            own.append(AdaptedPart(tuple(some), rows))
        held = self.held([len(part.rows) for part in own])
        made = AdaptedProduct(tuple(layers), inputs, range(inputs), tuple(own), held)
        self.products.append(made)
        return made

    def of_experts(self, prefix: str, config: ExpertConfig, hidden: int, own: range) -> list[AdaptedExperts]:
        """Return the places of a layer's experts, of which this rank has its own: of their first products, which make
        gates and ups, and of their second ones. None where there can be none."""
        if not self.has_any:
            return []
        name, inner = f"{prefix}experts.{{}}.", config.intermediate_size
        products = ([("gate", inner), ("up", inner)], hidden), ([("down", hidden)], inner)
        made = list[AdaptedExperts]()
        for parts, inputs in products:
            held = self.held([size for _, size in parts], alternate=len(parts) > 1, experts=len(own))
            patterns = tuple((f"{name}{part}_proj", size) for part, size in parts)
            made.append(AdaptedExperts(patterns, config.count, own, inputs, held))
        self.products += made
        return made

    def held(
        self,
        outputs: Sequence[int],
        *,
        alternate: bool = False,
        dtype: torch.dtype | None = None,
        experts: int | None = None,
    ) -> HeldAdapters:
        """Return what holds the adapters of a product of parts with so many outputs, or of so many experts."""
        if self.device.type != "cpu":
            return DeviceAdapters(self.rows, outputs, dtype or self.dtype, self.device)
        if self.packed:
            return MatrixAdapters(outputs, alternate=alternate, count=1 if experts is None else experts)
        return ProductAdapters(self.rows if experts is None else self.expert_rows, outputs)


def runs(owners: Sequence[int], panel: int) -> Iterator[tuple[int, int]]:
    """Divide outputs, of which each has one of some owners, into runs from one place to another: where the owner
    changes and a panel of so many outputs ends."""
    first = 0
    for at in range(1, len(owners) + 1):
        if at == len(owners) or (at % panel == 0 and owners[at] != owners[at - 1]):
            yield first, at
            first = at
