# SPDX-License-Identifier: Apache-2.0
"""Texts in pages of a pool, whose attention kernels and torch's operations compute. Slots that no row may read hold
NaN where kernels read them, since any weight of NaN is NaN."""

from dataclasses import dataclass

import torch
from ladder import Results
from torch import Tensor

from pontil.gpu_ops.kv.attention import (
    KEY_CHUNK,
    KEY_STRIP,
    GeneratedAttention,
    PagedAttention,
    PromptAttention,
    PromptSpan,
)
from pontil.gpu_ops.kv.cells import encode, movable
from pontil.gpu_ops.kv.device_attention import DeviceAttention
from pontil.gpu_ops.kv.device_tile import DeviceTile, cut
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.cells import LARGEST, SCALE_BYTES

SLOTS, LAYER = 16, 1
BLOCKS = 32
"""Blocks of each text: a multiple of those of a chunk of keys."""

Span = tuple[int, int, int]
"""A text, its first position in the tile, and the number of positions."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape and type of a layer's attention, and the type of cells, by default the same. With `value_dim` keys are
    values."""

    heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype
    window: int | None = None
    sinks: bool = False
    value_dim: int | None = None
    cells: torch.dtype | None = None

    @property
    def stored(self) -> torch.dtype:
        return self.cells or self.dtype

    @property
    def planes(self) -> int:
        return 1 if self.value_dim else 2

    def numbers(self, text: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all positions of a text."""
        draw = torch.Generator().manual_seed(text + 1)
        sizes = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (torch.randn(BLOCKS * SLOTS, size, self.dim, generator=draw).to(self.dtype) for size in sizes)
        return q, k, k if self.value_dim else v

    def layer(self, number: int, scale: float, device: torch.device) -> LayerAttention:
        sinks = torch.linspace(-1, 2, self.heads).to(device) if self.sinks else None
        return LayerAttention(number, scale, self.window, sinks, self.value_dim)


@dataclass(frozen=True, slots=True)
class Scene:
    """A tile of spans of different texts, `generated` or of prompts, followed by rows of padding."""

    shape: Heads
    spans: tuple[Span, ...]
    generated: bool
    padding: int = 1
    # Columns of tables that no text needs.
    spare: int = 0

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(text, position) for text, start, count in self.spans for position in range(start, start + count)]

    def blocks(self, text: int) -> list[int]:
        """Each text has its blocks, in an order of its own. Block 0 is nobody's."""
        order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(text)) + 1 + text * BLOCKS
        return [int(block) for block in order]

    def pool(self, unwritten: float) -> Tensor:
        """A pool that holds the positions before each span."""
        shape, most = self.shape, max(text for text, _, _ in self.spans) + 1
        size = (most * BLOCKS + 1, 2, shape.planes, shape.kv_heads, SLOTS, shape.dim)
        pool = encode(torch.full(size, unwritten), shape.stored)
        for text, start, _ in self.spans:
            _, k, v = shape.numbers(text)
            for position in range(start):
                parts = encode(torch.stack((k[position], v[position])[: shape.planes]), shape.stored)
                movable(pool)[self.blocks(text)[position // SLOTS], LAYER, :, :, position % SLOTS] = movable(parts)
        return pool

    def rows(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries, keys and values of the tile's rows; those of padding are 7."""
        texts = {text: self.shape.numbers(text) for text, _, _ in self.spans}
        q, k, v = (torch.stack([texts[text][i][position] for text, position in self.places]) for i in range(3))
        q, k, v = (torch.cat((one, one.new_full((self.padding, *one.shape[1:]), 7.0))) for one in (q, k, v))
        return q, k, v if self.shape.planes == 2 else None

    def attend(self, attention: PagedAttention, pool: Tensor) -> Results:
        shape, (q, k, v) = self.shape, self.rows()
        layer = shape.layer(LAYER, shape.dim**-0.5, pool.device)
        q, k = q.to(pool.device), k.to(pool.device)
        out = attention(layer, q, k, v if v is None else v.to(pool.device))
        return out, *contents(pool)

    def on_device(self, device: torch.device) -> Results:
        pool = self.pool(torch.nan).to(device)
        return self.attend(DeviceAttention(pool, self.tile(device)), pool)

    def tile(self, device: torch.device) -> DeviceTile:
        def words(numbers: list[int] | list[list[int]] | list[tuple[int, ...]]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int32).to(device)

        none = [0] * self.padding
        slots = [self.blocks(text)[p // SLOTS] * SLOTS + p % SLOTS for text, p in self.places]
        owners = [i for i, (_, _, count) in enumerate(self.spans) for _ in range(count)]
        tables = words([[*self.blocks(text), *[-1 << 30] * self.spare] for text, _, _ in self.spans])
        positions = words([position for _, position in self.places] + none)
        rows = (words(slots + [-1] * self.padding), positions, tables)
        if self.generated:
            return DeviceTile(*rows, words(owners + none), words([p + 1 for _, p in self.places] + none))
        tiles: list[tuple[int, ...]] = []
        row = 0
        for i, (_, start, count) in enumerate(self.spans):
            tiles += cut(row, start, count, i)
            row += count
        return DeviceTile(*rows, query_tiles=words([*tiles, (0, 0, 0, 0)]))

    def by_torch(self) -> Results:
        pool = self.pool(0.0)
        blocks = torch.tensor([self.blocks(text)[position // SLOTS] for text, position in self.places])
        positions = torch.tensor([position for _, position in self.places])
        where = (pool, blocks, positions % SLOTS)
        if self.generated:
            tables = [torch.tensor(self.blocks(text)).view(-1, KEY_STRIP // SLOTS) for text, _ in self.places]
            return self.attend(GeneratedAttention(*where, torch.stack(tables), positions + 1), pool)
        spans, row = [], 0
        for text, start, count in self.spans:
            spans.append(PromptSpan(row, start, count, torch.tensor(self.blocks(text)).view(-1, KEY_CHUNK // SLOTS)))
            row += count
        return self.attend(PromptAttention(*where, spans), pool)


def contents(pool: Tensor) -> Results:
    """The cells of a pool, as whole numbers behind all scales where rows have one; zeros where nothing is written."""
    if pool.dtype not in LARGEST:
        return (pool.nan_to_num(),)
    scales = pool[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return scales.nan_to_num(), movable(pool)[..., :-SCALE_BYTES].int()
