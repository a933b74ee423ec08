# SPDX-License-Identifier: Apache-2.0
"""A mixture's experts, computed together on a device, and the sum of their results."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pontil.gpu_ops.products.device_adapters import DeviceAdapters
from pontil.gpu_ops.products.linear import Linear
from pontil.gpu_ops.triton.device_weights import DeviceWeights


def stacked(parts: Sequence[DeviceWeights]) -> DeviceWeights:
    """Equal matrices, all stored alike, behind each other."""
    numbers = torch.stack([part.words for part in parts]).view(parts[0].numbers.dtype)
    biases = [part.bias for part in parts if part.bias is not None]
    scales = [part.scales for part in parts if part.scales is not None]
    bias, factors = (torch.stack(some) if some else None for some in (biases, scales))
    return DeviceWeights(numbers, bias, factors, parts[0].group, tabled=parts[0].tabled)


def weights_of(linears: Sequence[Linear]) -> DeviceWeights:
    """The weights of equal products: as they are stored if all are stored alike, else as numbers of their type."""
    parts = [linear.on_device for linear in linears]
    if len({(part.kind, part.group) for part in parts}) != 1 or any(part.order is not None for part in parts):
        parts = [linear.as_numbers for linear in linears]
    return stacked(parts)


class GroupedExperts:
    """Gated MLPs, those of the experts from `first` on, on a device. The activation is silu, or with `clamp` (its
    sharpness and its limit) a clamped one. Both products may have `adapters`, of the rows of a model's tile."""

    def __init__(
        self,
        gate_up: DeviceWeights,
        down: DeviceWeights,
        first: int,
        clamp: tuple[float, float] | None,
        adapters: Sequence[DeviceAdapters] = (),
    ) -> None:
        self.gate_up, self.down, self.first, self.clamp, self.adapters = gate_up, down, first, clamp, tuple(adapters)

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """The results of each row's experts, float32 [rows, per_token, outputs], for x [rows, inputs] and their numbers
        [rows, per_token]. Those of experts that are elsewhere are not set."""
        from pontil.gpu_ops.triton import experts

        adapters = None
        if self.adapters:
            first, second = (experts.ExpertAdapterTable(one.table, one.most_ranks) for one in self.adapters)
            adapters = experts.TileAdapters(self.adapters[0].rows.of_tile(len(x)), first, second)
        return experts.expert_results(x, chosen, self.gate_up, self.down, self.first, self.clamp, adapters)


def add_by_ratings(results: Tensor, ratings: Tensor) -> Tensor:
    """The sum over the places of results float32 [rows, per_token, size], each times its rating float32 [rows,
    per_token], added in the order of the ratings (C16)."""
    if results.device.type != "cpu":
        from pontil.gpu_ops.triton import experts

        return experts.add_by_ratings(results, ratings)
    total = results[:, 0] * ratings[:, :1]
    for place in range(1, ratings.shape[1]):
        total = total + results[:, place] * ratings[:, place : place + 1]
    return total
