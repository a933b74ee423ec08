# SPDX-License-Identifier: Apache-2.0
"""Paged attention over a block-major KV pool, `[block][layer][plane][kv_head][slot]`, of rows of cells (kv_cells.py).
A pool of two planes holds keys and values; in a pool of one, keys are values too.

A query's bits depend only on its position and its keys. Every product therefore has one fixed shape: queries of a
prompt run in tiles aligned to their absolute position, keys in chunks of KEY_CHUNK positions (KEY_STRIP for single
queries, whose cost is reading keys: the last chunk is half padding on average). The chunks are added up in order. A
chunk that is all padding, or wholly before a sliding window, adds an exact zero, so leaving it out changes no bit.
Everything is computed in float32, with what a pool holds: a position reads even its own key as it was stored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.elementwise import apply
from pontil.gpu_ops.kv.cells import decode, encode, movable
from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.rotary import HeadTurn
from pontil.gpu_ops.rotary import turn_heads

KEY_CHUNK = 256
KEY_STRIP = 64
QUERY_TILE = 64
QUERY_SCALE = 1 / math.log(2)
# Query heads of one KV head whose scores of a tile exist at a time.
MOST_HEADS = 16


class PagedAttention(Protocol):
    """The attention of one tile of rows, as the model calls it layer by layer without knowledge of blocks."""

    def __call__(
        self, layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor | None, turn: HeadTurn | None = None
    ) -> Tensor:
        """Store k and v [rows, kv_heads, head_dim], then attend: q [rows, heads, head_dim] to the same shape. Without v
        the keys are the values. With `turn` q and k are turned before. Rows that only pad the tile are neither stored
        nor attended; their result is zero.
        """


def write_kv(pool: Tensor, layer: int, blocks: Tensor, offsets: Tensor, k: Tensor, v: Tensor | None) -> None:
    """Put row r of k and v [rows, kv_heads, head_dim] into slot `offsets[r]` of block `blocks[r]`."""
    _, layers, planes, heads, slots, width = pool.shape
    parts = [k] if v is None else [k, v]
    assert len(parts) == planes, "the pool has another number of planes"
    head = torch.arange(heads, device=pool.device)
    places = (((blocks * layers + layer) * planes * heads).unsqueeze(1) + head) * slots + offsets.unsqueeze(1)
    rows = movable(pool).view(-1, width)
    for plane, numbers in enumerate(parts):
        cells = movable(encode(numbers, pool.dtype)).reshape(-1, width)
        rows.index_copy_(0, (places + plane * heads * slots).view(-1), cells)


def gather_kv(pool: Tensor, layer: int, tables: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of block tables [n, blocks per chunk], each float32 [n * kv_heads, width, head_dim]; one tensor
    twice where keys are values."""
    n, per_chunk = tables.shape
    blocks, layers, planes, heads, slots, width = pool.shape
    # Select whole runs of bytes by row: many times faster than indexing by block and layer.
    rows = movable(pool).view(blocks * layers, -1).index_select(0, (tables * layers + layer).view(-1)).view(pool.dtype)
    chunks = decode(rows.view(n, per_chunk, planes, heads, slots, width).permute(2, 0, 3, 1, 4, 5))
    parts = chunks.reshape(planes, n * heads, per_chunk * slots, -1)
    return parts[0], parts[-1]


def hide(visible: Tensor) -> Tensor:
    """A mask to add to scores: 0 where a key is visible, minus infinity elsewhere. Adding is cheaper than filling."""
    return torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -torch.inf)


def weigh(scores: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Softmax over all chunks, then the weighted sum of v, chunk after chunk.

    scores [sequences, chunks, kv_heads, queries, width], in units of ln 2 (the queries carry QUERY_SCALE: on a CPU
    exp2 takes a fraction of the time of exp), -inf where hidden; v as `gather_kv` gives it; sinks [kv_heads, queries],
    in the same units.
    Returns [sequences, kv_heads, queries, head_dim].
    """
    sequences, chunks, heads, queries, width = scores.shape
    highest = scores.amax(dim=(1, 4), keepdim=True)
    if sinks is not None:
        sinks = sinks.view(1, 1, heads, queries, 1)
        highest = torch.maximum(highest, sinks)
    weights = apply(torch.exp2, scores - highest)
    values = torch.bmm(weights.view(-1, queries, width), v).view(sequences, chunks, heads, queries, -1)
    sums = weights.sum(-1, keepdim=True)
    # A cumulative sum adds in order for any number of chunks; a tree of partial sums would not.
    total = sums.cumsum(1)[:, -1]
    if sinks is not None:
        total = total + apply(torch.exp2, sinks - highest)[:, 0]
    return values.cumsum(1)[:, -1] / total


@dataclass(frozen=True, slots=True)
class Strips:
    """The keys that the rows of a tile read: block tables [rows * strips, blocks per strip], and the mask that is added
    to the scores, [rows, strips, 1, 1, KEY_STRIP]."""

    tables: Tensor
    hidden: Tensor


class GeneratedAttention:
    """Rows of generated positions: row r sees the first `lengths[r]` positions of its own block table, or the last of
    these within the layer's window.

    `tables` [rows, strips, blocks per strip] is padded with block 0, which no sequence owns.
    """

    def __init__(self, pool: Tensor, blocks: Tensor, offsets: Tensor, tables: Tensor, lengths: Tensor) -> None:
        self.pool, self.blocks, self.offsets = pool, blocks, offsets
        self.tables, self.lengths = tables, lengths
        self.strips: dict[int | None, Strips] = {}

    def __call__(
        self, layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor | None, turn: HeadTurn | None = None
    ) -> Tensor:
        if turn is not None:
            q, k = turn_heads(q, k, turn)
        rows = len(self.tables)
        heads, dim = q.shape[1:]
        kv_heads = k.shape[1]
        write_kv(self.pool, layer.layer, self.blocks, self.offsets, k[:rows], v if v is None else v[:rows])
        seen = self.seen(layer.window)
        strips = seen.hidden.shape[1]
        keys, values = gather_kv(self.pool, layer.layer, seen.tables)
        query = (q[:rows].float() * (QUERY_SCALE * layer.scale)).view(rows, 1, kv_heads, heads // kv_heads, dim)
        query = query.expand(-1, strips, -1, -1, -1).reshape(-1, heads // kv_heads, dim)
        scores = torch.bmm(query, keys.transpose(1, 2)).view(rows, strips, kv_heads, -1, KEY_STRIP)
        scores += seen.hidden
        out = torch.zeros_like(q)
        sinks = None if layer.sinks is None else (layer.sinks * QUERY_SCALE).view(kv_heads, -1)
        out[:rows] = weigh(scores, values, sinks).reshape(rows, heads, dim).to(q.dtype)
        return out[..., : layer.value_dim]

    def seen(self, window: int | None) -> Strips:
        """The keys that layers with this window read, equal for all such layers: the first one caches them."""
        if window not in self.strips:
            self.strips[window] = self.every_strip() if window is None else self.last_strips(window)
        return self.strips[window]

    def every_strip(self) -> Strips:
        rows, strips, per_strip = self.tables.shape
        positions = torch.arange(strips * KEY_STRIP, device=self.tables.device).view(1, strips, KEY_STRIP)
        hidden = hide(positions < self.lengths.view(-1, 1, 1))
        return Strips(self.tables.view(rows * strips, per_strip), hidden.view(rows, strips, 1, 1, KEY_STRIP))

    def last_strips(self, window: int) -> Strips:
        """The strips that hold the last `window` positions of each row; strips that no row sees are left out."""
        rows, strips, per_strip = self.tables.shape
        count = min(strips, (window + KEY_STRIP - 2) // KEY_STRIP + 1)
        start = (self.lengths - window).clamp_(min=0).view(-1, 1)
        wanted = start // KEY_STRIP + torch.arange(count, device=self.tables.device)
        positions = wanted.unsqueeze(-1) * KEY_STRIP + torch.arange(KEY_STRIP, device=self.tables.device)
        visible = (positions >= start.unsqueeze(-1)) & (positions < self.lengths.view(-1, 1, 1))
        # Past the row's last strip any strip will do, because the mask hides it.
        places = wanted.clamp_(max=strips - 1).unsqueeze(-1).expand(-1, -1, per_strip)
        tables = self.tables.gather(1, places).view(rows * count, per_strip)
        return Strips(tables, hide(visible).view(rows, count, 1, 1, KEY_STRIP))


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Neighbouring prompt positions of one sequence in a tile: rows [row, row + count) hold [start, start + count).

    `table` [chunks, blocks per chunk] covers at least the last of these positions, padded with block 0.
    """

    row: int
    start: int
    count: int
    table: Tensor


@dataclass(frozen=True, slots=True)
class PromptAttention:
    """Rows of prompt positions, causal within and before their span."""

    pool: Tensor
    blocks: Tensor
    offsets: Tensor
    spans: Sequence[PromptSpan]

    def __call__(
        self, layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor | None, turn: HeadTurn | None = None
    ) -> Tensor:
        if turn is not None:
            q, k = turn_heads(q, k, turn)
        rows = len(self.blocks)
        write_kv(self.pool, layer.layer, self.blocks, self.offsets, k[:rows], v if v is None else v[:rows])
        out = torch.zeros_like(q)
        for span in self.spans:
            here = slice(span.row, span.row + span.count)
            out[here] = self.attend(layer, span, q[here].float() * (QUERY_SCALE * layer.scale), k.shape[1])
        return out[..., : layer.value_dim]

    def attend(self, layer: LayerAttention, span: PromptSpan, q: Tensor, kv_heads: int) -> Tensor:
        """The span's scaled queries, laid onto tiles that start at multiples of QUERY_TILE."""
        count, heads, dim = q.shape
        group = heads // kv_heads
        first = span.start // QUERY_TILE
        tiles = (span.start + count - 1) // QUERY_TILE - first + 1
        offset = span.start - first * QUERY_TILE
        laid = q.new_zeros(tiles * QUERY_TILE, heads, dim)
        laid[offset : offset + count] = q
        laid = laid.view(tiles, QUERY_TILE, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
        skipped = first_chunk(first * QUERY_TILE, layer.window)
        keys, values = gather_kv(self.pool, layer.layer, span.table[skipped:])
        starts = range(first * QUERY_TILE, (first + tiles) * QUERY_TILE, QUERY_TILE)
        done = laid.new_empty(laid.shape)
        for head in range(0, group, MOST_HEADS):
            some = slice(head, head + MOST_HEADS)
            sinks = None if layer.sinks is None else (layer.sinks * QUERY_SCALE).view(kv_heads, group)[:, some]
            for i, start in enumerate(starts):
                done[i, :, some] = tile(laid[i, :, some], keys, values, start, layer.window, skipped, sinks)
        out = done.permute(0, 3, 1, 2, 4)
        return out.reshape(tiles * QUERY_TILE, heads, dim)[offset : offset + count]


def first_chunk(start: int, window: int | None) -> int:
    """The first chunk of keys that a tile of queries at positions start… can see."""
    return 0 if window is None else max(0, start - window + 1) // KEY_CHUNK


def tile(
    q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None, skipped: int, sinks: Tensor | None
) -> Tensor:
    """One tile of queries [kv_heads, group, QUERY_TILE, head_dim] at positions start…, over the chunks it sees.

    `keys` and `values` begin with chunk number `skipped`; sinks [kv_heads, group]. The result has q's shape.
    """
    shape, q = q.shape, q.flatten(1, 2)
    kv_heads, queries, _ = q.shape
    # A tile never straddles two chunks (KEY_CHUNK is a multiple of QUERY_TILE): the span's table covers it.
    first, end = first_chunk(start, window), start // KEY_CHUNK + 1
    used = slice((first - skipped) * kv_heads, (end - skipped) * kv_heads)
    scores = torch.bmm(q.repeat(end - first, 1, 1), keys[used].transpose(1, 2))
    scores = scores.view(1, end - first, kv_heads, queries, KEY_CHUNK)
    positions = torch.arange(first * KEY_CHUNK, end * KEY_CHUNK, device=q.device).view(1, -1, 1, 1, KEY_CHUNK)
    asking = torch.arange(start, start + QUERY_TILE, device=q.device).repeat(queries // QUERY_TILE)
    asking = asking.view(1, 1, 1, queries, 1)
    visible = positions <= asking
    if window is not None:
        visible &= positions > asking - window
    scores += hide(visible)
    if sinks is not None:
        sinks = sinks.repeat_interleave(QUERY_TILE, dim=1)
    return weigh(scores, values[used], sinks)[0].view(shape)
