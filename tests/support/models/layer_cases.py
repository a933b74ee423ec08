# SPDX-License-Identifier: Apache-2.0
"""Random halves of layers with latent attention or experts, for the kernels and their reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.experts import ExpertHalf, OwnExperts
from pontil.gpu_ops.kernels.latent import HeadMatrices, LatentHalf, LatentMatrices
from pontil.gpu_ops.kernels.layer import GatedKind, MlpHalf, Norms, Rotation
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.reference import LatentWeights, expert_half, latent_half
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kernels.weights.matrix import alternate, pack
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights, per_channel
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.cells import row_cells
from pontil.gpu_ops.parameters.experts import ExpertChoice
from pontil.gpu_ops.rotary import rotary_frequencies, rotary_table

EPSILON, LAYERS = 1e-5, 2


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weight(dtype: torch.dtype, seed: int, *shape: int) -> Tensor:
    scale: float = shape[-1] ** -0.5
    return (random(seed, *shape) * scale).to(dtype)


@dataclass(frozen=True)
class LatentCase:
    dtype: torch.dtype
    heads: int = 3
    rank: int = 48
    query_rank: int | None = None
    key_dim: int = 16
    rotary_dim: int = 16
    value_dim: int = 32
    hidden: int = 80
    length: int = 150
    block_size: int = 16
    sandwich: bool = False
    cells: torch.dtype | None = None

    @property
    def weights(self) -> LatentWeights:
        query, asked = self.heads * (self.key_dim + self.rotary_dim), self.query_rank or self.hidden
        down = None if self.query_rank is None else weight(self.dtype, 1, self.query_rank, self.hidden)
        return LatentWeights(
            weight(self.dtype, 2, self.rank + self.rotary_dim, self.hidden),
            down,
            weight(self.dtype, 3, query, asked),
            weight(self.dtype, 4, self.heads, self.key_dim, self.rank),
            weight(self.dtype, 5, self.heads, self.value_dim, self.rank).transpose(1, 2),
            weight(self.dtype, 6, self.hidden, self.heads * self.value_dim),
        )

    @property
    def norms(self) -> Norms:
        after = random(12, self.hidden) if self.sandwich else None
        query = None if self.query_rank is None else random(13, self.query_rank)
        return Norms(EPSILON, random(11, self.hidden), after, query, random(14, self.rank))

    @property
    def angles(self) -> tuple[Tensor, Tensor]:
        return rotary_table(rotary_frequencies(self.rotary_dim, 1e4), self.length)

    @property
    def scale(self) -> float:
        return float((self.key_dim + self.rotary_dim) ** -0.5)

    @property
    def x(self) -> Tensor:
        return random(7, self.length, self.hidden)

    def half(self, library: KernelLibrary) -> LatentHalf:
        own = self.weights
        matrices = LatentMatrices(
            pack(own.compress), None if own.down is None else pack(own.down), pack(own.query),
            HeadMatrices.packed(own.keys), HeadMatrices.packed(own.values), pack(own.out),
        )  # fmt: skip
        rotation = Rotation(*self.angles, interleaved=True)
        return LatentHalf(library, matrices, self.norms, rotation, EPSILON, LayerAttention(1, self.scale))

    def pool(self) -> tuple[Tensor, list[int]]:
        """A pool that was never written (all its bits make NaN), and the numbers of enough of its blocks."""
        count, cells = -(-self.length // self.block_size), self.cells or self.dtype
        row = row_cells(self.rank + self.rotary_dim, cells)
        pool = torch.empty(count + 2, LAYERS, 1, 1, self.block_size, row, dtype=cells)
        pool.view(torch.uint8).fill_(255)
        return pool, list(range(count, 0, -1))

    def computed(self, half: LatentHalf, cuts: Sequence[int]) -> Tensor:
        pool, blocks = self.pool()
        hidden, start = self.x, 0
        for part in hidden.split(list(cuts)):
            half(part, KernelTile(pool, [TileSpan(start, len(part), blocks)], self.dtype))
            start += len(part)
        return hidden

    def expected(self) -> Tensor:
        cells = self.cells or self.dtype
        return latent_half(self.x, self.weights, self.norms, self.angles, EPSILON, self.scale, cells)


@dataclass(frozen=True)
class ExpertCase:
    dtype: torch.dtype
    choice: ExpertChoice
    hidden: int = 64
    inner: int = 48
    rows: int = 70
    sandwich: bool = False
    int8: bool = False

    @property
    def router(self) -> Tensor:
        return weight(torch.float32, 1, self.choice.count, self.hidden)

    def expert(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        shapes = ((self.inner, self.hidden), (self.inner, self.hidden), (self.hidden, self.inner))
        gate, up, down = (weight(self.dtype, 10 * number + place, *one) for place, one in enumerate(shapes))
        return gate, up, down

    @property
    def norms(self) -> Norms:
        return Norms(EPSILON, random(2, self.hidden), random(3, self.hidden) if self.sandwich else None)

    @property
    def x(self) -> Tensor:
        return random(4, self.rows, self.hidden)

    def stored(self, one: Tensor) -> Tensor | QuantizedWeights:
        return per_channel(one) if self.int8 else one

    def half(self, library: KernelLibrary) -> ExpertHalf:
        experts = []
        for number in range(self.choice.count):
            gate, up, down = (self.stored(one) for one in self.expert(number))
            experts.append(MlpHalf(library, pack(alternate(gate, up)), pack(down), Norms(0.0), GatedKind()))
        return ExpertHalf(library, self.choice, pack(self.router), OwnExperts(experts, 0), self.norms)

    def computed(self, half: ExpertHalf, rows: slice = slice(None)) -> Tensor:
        hidden = self.x[rows].contiguous()
        half(hidden, hidden)
        return hidden

    def expected(self) -> Tensor:
        experts = [self.expert(number) for number in range(self.choice.count)]
        return expert_half(self.x, self.choice, self.router, experts, self.norms, self.dtype)
