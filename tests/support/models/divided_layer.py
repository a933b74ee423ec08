# SPDX-License-Identifier: Apache-2.0
"""Random layers, computed whole or by ranks that each hold a part of every weight."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.layer import AttentionHalf, GatedKind, HeadShape, Layers, MlpHalf, Norms, Rotation
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kernels.weights.matrix import alternate, pack, stack
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights, per_channel
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.cells import row_cells
from pontil.gpu_ops.rotary import rotary_frequencies, rotary_table
from pontil.runtime.models.partition import Partition

BLOCK, LAYERS = 16, 2
ALONE = Partition()
PLAIN, INT8, NIBBLES, FIVE_BITS = "plain", "int8", "nibbles", "five bits"

Weight = Tensor | QuantizedWeights


@dataclass(frozen=True)
class DividedLayer:
    """Two layers of these sizes, whose seed decides all weights. `prompt` rows are computed first, then `decoded` rows
    of another sequence with them, one by one."""

    dtype: torch.dtype = torch.bfloat16
    shape: HeadShape = HeadShape(4, 4, 32)
    hidden: int = 192
    inner: int = 320
    prompt: int = 83
    decoded: int = 3
    window: int | None = None
    sandwich: bool = False
    head_norms: bool = False
    bias: bool = False
    gelu: bool = False
    cells: torch.dtype | None = None
    weights: str = PLAIN

    def random(self, seed: int, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    def weight(self, seed: int, outputs: int, inputs: int) -> Weight:
        scale: float = inputs**-0.5
        dense = self.random(seed, outputs, inputs) * scale
        if self.weights == PLAIN:
            return dense.to(self.dtype)
        if self.weights == INT8:
            return per_channel(dense)
        groups = inputs // 16
        highest = 15 if self.weights == NIBBLES else 31
        numbers = (dense / scale * 3 + 8).round().clamp(0, highest - 1).to(torch.uint8)
        # One row has a number that no other has.
        numbers[0, 0] = highest
        scales = self.random(seed + 100, outputs, groups).abs() * scale / 3
        return QuantizedWeights(numbers, scales, -2 * scales)

    def norms(self, seed: int) -> Norms:
        after = self.random(seed + 1, self.hidden) if self.sandwich else None
        heads = [self.random(seed + i, self.shape.head_dim) if self.head_norms else None for i in (2, 3)]
        return Norms(1e-5, self.random(seed, self.hidden), after, *heads)

    def own(self, partition: Partition) -> HeadShape:
        dim = self.shape.head_dim
        heads, kv_heads = (len(partition.heads(n, dim)) // dim for n in (self.shape.heads, self.shape.kv_heads))
        return HeadShape(heads, kv_heads, dim)

    def attention(self, library: KernelLibrary, layer: int, partition: Partition) -> AttentionHalf:
        dim, seed = self.shape.head_dim, 1000 * layer
        wide = (self.shape.heads, self.shape.kv_heads, self.shape.kv_heads)
        cuts = [partition.heads(count, dim) for count in wide]
        qkv = [cut(self.weight(seed + i, n * dim, self.hidden), cuts[i]) for i, n in enumerate(wide)]
        bias = [self.random(seed + 5 + i, n * dim)[cuts[i]] for i, n in enumerate(wide)]
        out = cut(self.weight(seed + 3, self.hidden, self.shape.heads * dim), partition.columns(self.hidden))
        out_bias = self.random(seed + 8, self.hidden)[partition.columns(self.hidden)]
        return AttentionHalf(
            library, pack(stack(*qkv), torch.cat(bias) if self.bias else None),
            pack(out, out_bias if self.bias else None), self.norms(seed + 20),
            Rotation(*rotary_table(rotary_frequencies(dim, 1e4), self.prompt + 8)), self.own(partition),
            LayerAttention(layer, dim**-0.5, self.window),
        )  # fmt: skip

    def mlp(self, library: KernelLibrary, layer: int, partition: Partition) -> MlpHalf:
        seed, inner = 1000 * layer + 40, partition.columns(self.inner)
        gate, up = (cut(self.weight(seed + i, self.inner, self.hidden), inner) for i in range(2))
        down = cut(self.weight(seed + 2, self.hidden, self.inner), partition.columns(self.hidden))
        return MlpHalf(library, pack(alternate(gate, up)), pack(down), self.norms(seed + 20), GatedKind(self.gelu))

    def pool(self, partition: Partition) -> Tensor:
        cells = self.cells or self.dtype
        heads, row = self.own(partition).kv_heads, row_cells(self.shape.head_dim, cells)
        pool = torch.empty(20, LAYERS, 2, heads, BLOCK, row, dtype=cells)
        pool.view(torch.uint8).fill_(255)
        return pool

    def tiles(self, pool: Tensor) -> list[KernelTile]:
        """One of the prompt's rows, and one for each position that is decoded: of the prompt and of a new sequence."""
        blocks, others = [3, 1, 8, 2, 5, 7, 9], [11, 12]
        spans = [[TileSpan(0, self.prompt, blocks)]]
        for i in range(self.decoded):
            spans.append([TileSpan(self.prompt + i, 1, blocks), TileSpan(i, 1, others)])
        return [KernelTile(pool, one, self.dtype) for one in spans]

    def rows(self, tile: KernelTile, number: int) -> Tensor:
        return self.random(500 + number, tile.rows, self.hidden)

    def computed(self, library: KernelLibrary, partition: Partition = ALONE) -> tuple[list[Tensor], Tensor]:
        """The rows of each tile after both layers, and the KV pool: by halves, and then the same as `Layers`, after
        keys and values alone."""
        halves = [(self.attention(library, n, partition), self.mlp(library, n, partition)) for n in range(LAYERS)]
        pool, results = self.pool(partition), []
        for number, tile in enumerate(self.tiles(pool)):
            hidden = self.rows(tile, number)
            for attention, mlp in halves:
                attention(hidden, tile)
                mlp(hidden, hidden)
            again = self.rows(tile, number)
            stores = halves[0][0].store(again, tile)
            assert stores == (self.shape.head_dim * self.own(partition).heads % 32 == 0)
            Layers(library, halves)(again, tile)
            assert torch.equal(hidden, again)
            results.append(hidden)
        return results, pool


def cut(weight: Weight, rows: range) -> Weight:
    own = slice(rows.start, rows.stop)
    if isinstance(weight, Tensor):
        return weight[own]
    return QuantizedWeights(weight.numbers[own], weight.scales[own], weight.offsets[own])
