# SPDX-License-Identifier: Apache-2.0
"""The places that the products of a model get for low-rank adapters, as they are made."""

from collections.abc import Sequence

import torch

from pontil.gpu_ops.kernels.weights.adapters import MatrixAdapters
from pontil.gpu_ops.products.adapters import ProductAdapters, RowAdapters
from pontil.gpu_ops.products.device_adapters import DeviceAdapters
from pontil.runtime.models.adapters import AdaptedExperts, AdaptedProduct, HeldAdapters
from pontil.runtime.models.config import ExpertConfig
from pontil.runtime.models.partition import Partition, Split

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
        own = [len(split.outputs(self.partition, outputs)) for _, outputs in parts]
        held: HeldAdapters
        if self.device.type != "cpu":
            held = DeviceAdapters(self.rows, own, dtype or self.dtype, self.device)
        elif self.packed:
            held = MatrixAdapters(own, alternate=alternate)
        else:
            held = ProductAdapters(self.rows, own)
        made = AdaptedProduct(tuple(parts), inputs, split, self.partition, held)
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
            outputs = [size for _, size in parts]
            held: HeldAdapters
            if self.device.type != "cpu":
                held = DeviceAdapters(self.rows, outputs, self.dtype, self.device)
            elif self.packed:
                held = MatrixAdapters(outputs, alternate=len(parts) > 1, count=len(own))
            else:
                held = ProductAdapters(self.expert_rows, outputs)
            patterns = tuple((f"{name}{part}_proj", size) for part, size in parts)
            made.append(AdaptedExperts(patterns, config.count, own, inputs, held))
        self.products += made
        return made
