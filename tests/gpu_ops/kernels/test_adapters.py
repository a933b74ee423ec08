# SPDX-License-Identifier: Apache-2.0
"""Adapters of every rank beside those of others, by the kernels of every instruction set: the results of merged
weights, and of each row alone (C16)."""

from dataclasses import dataclass

import pytest
import torch
from layer_cases import ExpertCase, random
from torch import Tensor

from pontil.gpu_ops.kernels.check import ATTENTION, BLOCK_SIZE, HIDDEN, SHAPE, TOLERANCES, Layer
from pontil.gpu_ops.kernels.experts import ExpertHalf, OwnExperts
from pontil.gpu_ops.kernels.layer import AttentionHalf, GatedKind, MlpHalf, Norms, Rotation
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.reference import attention_half
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kernels.weights.adapters import MatrixAdapters
from pontil.gpu_ops.kernels.weights.arena import Arena
from pontil.gpu_ops.kernels.weights.matrix import GROUP, PANEL, alternate, pack
from pontil.gpu_ops.kernels.weights.structures import LayerFields
from pontil.gpu_ops.parameters.adapters import NO_ADAPTER, LowRank, stacked
from pontil.gpu_ops.parameters.cells import row_cells
from pontil.gpu_ops.parameters.experts import ExpertChoice

QUERIES, KEYS = SHAPE.heads * SHAPE.head_dim, SHAPE.kv_heads * SHAPE.head_dim
PARTS = (QUERIES, KEYS, KEYS)
# Half a panel, a panel, three halves, and more than a group; those of three parts end with one panel or two.
RANKS = (5, 16, 24, 40)
COUNTS = (1, 7, 35, 4, 13)


class AdaptedLayer(Layer):
    """The attention half of a random layer with an adapter of each rank, which leaves the keys as they are."""

    def __init__(self, library: KernelLibrary, dtype: torch.dtype) -> None:
        super().__init__(library, dtype)
        self.own = MatrixAdapters(PARTS), MatrixAdapters((HIDDEN,))
        qkv, out = self.own[0].of(pack(self.qkv, self.bias)), self.own[1].of(pack(self.out))
        rotation = Rotation(*self.angles)
        self.attention = AttentionHalf(library, qkv, out, self.norms, rotation, SHAPE, ATTENTION)
        self.adapters = [self.adapter(number, rank) for number, rank in enumerate(RANKS)]

    def adapter(self, number: int, rank: int) -> tuple[list[LowRank | None], LowRank]:
        query, _, value = (self.low_rank(size, HIDDEN, rank) for size in PARTS)
        parts, last = [query, None, value], self.low_rank(HIDDEN, QUERIES, rank)
        self.own[0].made(parts, Arena()).put(number)
        self.own[1].made([last], Arena()).put(number)
        return parts, last

    def low_rank(self, outputs: int, inputs: int, rank: int) -> LowRank:
        return LowRank(self.random(rank, inputs).float(), self.random(outputs, rank).float())

    def attended(self, x: Tensor, spans: list[tuple[int, int]]) -> Tensor:
        """Compute x as spans of so many rows with an adapter, each a sequence, in one tile."""
        pool = torch.zeros(4 * len(spans), 2, 2, SHAPE.kv_heads, BLOCK_SIZE, row_cells(SHAPE.head_dim, self.dtype))
        tile_spans = [
            TileSpan(0, count, range(4 * place, 4 * place + 4), number) for place, (count, number) in enumerate(spans)
        ]
        hidden = x.clone()
        self.attention(hidden, KernelTile(pool.to(self.dtype), tile_spans, self.dtype))
        return hidden

    def merged(self, x: Tensor, number: int) -> Tensor:
        qkv, out = self.qkv.float(), self.out.float()
        if number != NO_ADAPTER:
            parts, last = self.adapters[number]
            qkv = qkv + torch.cat(
                [
                    torch.zeros(size, HIDDEN) if one is None else one.up @ one.down
                    for one, size in zip(parts, PARTS, strict=True)
                ]
            )
            out = out + last.up @ last.down
        weights = qkv.to(self.dtype), self.bias, out.to(self.dtype)
        return attention_half(x, weights, self.norms, self.angles, SHAPE, ATTENTION, self.dtype)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_rows_of_any_adapters_equal_merged_weights_and_those_alone(
    any_kernels: KernelLibrary, dtype: torch.dtype
) -> None:  # C16
    layer = AdaptedLayer(any_kernels, dtype)
    spans = list(zip(COUNTS, (2, NO_ADAPTER, 0, 1, 3), strict=True))
    x = torch.randn(sum(COUNTS), HIDDEN, generator=torch.Generator().manual_seed(2))
    together = layer.attended(x, spans).split(COUNTS)
    for rows, found, span in zip(x.split(COUNTS), together, spans, strict=True):
        assert torch.equal(layer.attended(rows, [span]), found), span
        expected = layer.merged(rows, span[1])
        assert (found - expected).norm() < TOLERANCES[dtype] * (expected - rows).norm(), span
        if span[1] != NO_ADAPTER:
            assert (expected - layer.merged(rows, NO_ADAPTER)).norm() > 0.1 * (expected - rows).norm(), span


def test_an_adapter_is_padded_to_a_panel_and_not_to_a_group() -> None:
    """Bytes are what an adapter costs."""
    for rank, outputs in ((3, PANEL), (16, PANEL), (24, GROUP), (40, GROUP + PANEL)):
        own = MatrixAdapters((HIDDEN,))
        matrix = own.of(pack(torch.zeros(HIDDEN, 96)))
        made = own.made([LowRank(torch.zeros(rank, 96), torch.zeros(HIDDEN, rank))], Arena())
        panels = -(-HIDDEN // GROUP) * GROUP
        assert made.nbytes == 4 * (outputs * matrix.words + panels * rank), rank


@dataclass(frozen=True)
class AdaptedCase(ExpertCase):
    """Experts, and what chooses them, with the weights that one of the adapters is merged into. Some experts have
    none, and ranks differ."""

    adapter: int = NO_ADAPTER

    def low_rank(self, adapter: int, place: int, outputs: int, inputs: int) -> LowRank:
        rank, seed = RANKS[(adapter + place) % len(RANKS)], 100 * adapter + place
        return LowRank(random(seed, rank, inputs) * inputs**-0.5, random(seed + 50, outputs, rank) * rank**-0.5)

    def of_expert(self, adapter: int, number: int) -> tuple[LowRank | None, LowRank | None, LowRank | None]:
        if (adapter + number) % 3 == 0:
            return None, None, None
        gate, up = (self.low_rank(adapter, 3 * number + place, self.inner, self.hidden) for place in range(2))
        return gate, up, self.low_rank(adapter, 3 * number + 2, self.hidden, self.inner)

    def of_router(self, adapter: int) -> LowRank:
        return self.low_rank(adapter, 40, self.choice.count, self.hidden)

    @property
    def router(self) -> Tensor:
        plain, one = super().router, None if self.adapter == NO_ADAPTER else self.of_router(self.adapter)
        return plain if one is None else plain + one.up @ one.down

    def expert(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        weights, adapter = super().expert(number), self.adapter
        parts = (None,) * 3 if adapter == NO_ADAPTER else self.of_expert(adapter, number)
        gate, up, down = (
            weight if one is None else (weight.float() + one.up @ one.down).to(self.dtype)
            for weight, one in zip(weights, parts, strict=True)
        )
        return gate, up, down

    def adapted(self, library: KernelLibrary, adapters: int) -> tuple[ExpertHalf, list[MatrixAdapters]]:
        """Return the half with so many adapters, and what holds these."""
        count = self.choice.count
        gate_ups = MatrixAdapters((self.inner, self.inner), alternate=True, count=count)
        downs, routers = MatrixAdapters((self.hidden,), count=count), MatrixAdapters((count,))
        halves = [
            MlpHalf(library, gate_ups.of(pack(alternate(gate, up))), downs.of(pack(down)), Norms(0.0), GatedKind())
            for gate, up, down in map(self.expert, range(count))
        ]
        router = routers.of(pack(self.router))
        for adapter in range(adapters):
            gate, up, down = (
                stacked(part) for part in zip(*(self.of_expert(adapter, one) for one in range(count)), strict=True)
            )
            for held, parts in ((gate_ups, [gate, up]), (downs, [down]), (routers, [self.of_router(adapter)])):
                held.made(parts, Arena()).put(adapter)
        half = ExpertHalf(library, self.choice, router, OwnExperts(halves, 0), self.norms)
        return half, [gate_ups, downs, routers]

    def in_tile(self, half: ExpertHalf, x: Tensor, spans: list[tuple[int, int]]) -> Tensor:
        """Compute rows of so many of each adapter, (count, number), in one tile."""
        pool = torch.zeros(1, 1, 1, 1, BLOCK_SIZE, row_cells(16, self.dtype), dtype=self.dtype)
        tile_spans = [TileSpan(0, count, [0] * 5, number) for count, number in spans]
        hidden, layers = x.clone(), (LayerFields * 1)(LayerFields(**half.pointers))
        tile = KernelTile(pool, tile_spans, self.dtype)
        half.library.layers(layers, tile.fields, hidden)
        return hidden


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_experts_of_any_adapters_equal_merged_weights_and_those_alone(
    any_kernels: KernelLibrary, dtype: torch.dtype
) -> None:  # C16
    case = AdaptedCase(dtype, ExpertChoice(5, 2), rows=sum(COUNTS))
    half, _held = case.adapted(any_kernels, 3)
    spans = list(zip(COUNTS, (2, NO_ADAPTER, 0, 1, 2), strict=True))
    together = case.in_tile(half, case.x, spans).split(COUNTS)
    for rows, found, span in zip(case.x.split(COUNTS), together, spans, strict=True):
        assert torch.equal(case.in_tile(half, rows, [span]), found), span
        expected = rows.clone()
        AdaptedCase(dtype, case.choice, adapter=span[1]).half(any_kernels)(expected, expected)
        near = (found - expected).norm(dim=1) < 2 * TOLERANCES[dtype] * (expected - rows).norm(dim=1)
        # Where weights are rounded a row may choose another expert.
        assert near.float().mean() >= (1.0 if dtype == torch.float32 else 0.9), span
