# SPDX-License-Identifier: Apache-2.0
"""Adapters of every rank beside those of others, by the kernels of every instruction set: the results of merged
weights, and of each row alone (C16)."""

import pytest
import torch
from torch import Tensor

from pontil.gpu_ops.kernels.check import ATTENTION, BLOCK_SIZE, HIDDEN, SHAPE, TOLERANCES, Layer
from pontil.gpu_ops.kernels.layer import AttentionHalf, Rotation
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.reference import attention_half
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kernels.weights.adapters import MatrixAdapters
from pontil.gpu_ops.kernels.weights.arena import Arena
from pontil.gpu_ops.kernels.weights.matrix import GROUP, PANEL, pack
from pontil.gpu_ops.parameters.adapters import NO_ADAPTER, LowRank
from pontil.gpu_ops.parameters.cells import row_cells

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
