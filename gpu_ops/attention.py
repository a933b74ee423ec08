# SPDX-License-Identifier: Apache-2.0
"""Paged attention over a block-major KV pool, `[block][layer][k|v][kv_head][slot][head_dim]`.

A query's bits depend on its position and its keys only. To that end every product has one fixed shape: queries of a
prompt in tiles aligned to their absolute position, keys in chunks of KEY_CHUNK positions (KEY_STRIP for single queries,
whose cost is reading keys: the last chunk is half padding on average), and the chunks are added up in order, so that a
chunk that is all padding adds an exact zero. Everything is computed in float32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

KEY_CHUNK = 256
KEY_STRIP = 64
QUERY_TILE = 64
QUERY_SCALE = 1 / math.log(2)


class PagedAttention(Protocol):
    """The attention of one tile of rows: what the model calls, layer by layer, knowing nothing of blocks."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v [rows, kv_heads, head_dim], then attend: q [rows, heads, head_dim] to the same shape.

        Rows that only pad the tile are neither stored nor attended; their result is zero.
        """


def write_kv(pool: Tensor, layer: int, blocks: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
    """Put row r of k and v [rows, kv_heads, head_dim] into slot `offsets[r]` of block `blocks[r]`."""
    _, layers, _, heads, slots, dim = pool.shape
    head = torch.arange(heads, device=pool.device)
    places = (((blocks * layers + layer) * 2 * heads).unsqueeze(1) + head) * slots + offsets.unsqueeze(1)
    rows = pool.view(-1, dim)
    rows.index_copy_(0, places.view(-1), k.to(pool.dtype).reshape(-1, dim))
    rows.index_copy_(0, (places + heads * slots).view(-1), v.to(pool.dtype).reshape(-1, dim))


def gather_kv(pool: Tensor, layer: int, tables: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of block tables [n, blocks per chunk], each float32 [n * kv_heads, width, head_dim]."""
    n, per_chunk = tables.shape
    blocks, layers, _, heads, slots, dim = pool.shape
    # Whole runs of bytes, selected by row: many times faster than indexing by block and layer.
    rows = pool.view(blocks * layers, -1).index_select(0, (tables * layers + layer).view(-1))
    chunks = rows.view(n, per_chunk, 2, heads, slots, dim).permute(2, 0, 3, 1, 4, 5)
    # In one pass: a conversion that kept the permuted strides would be copied again.
    chunks = chunks.to(torch.float32, memory_format=torch.contiguous_format)
    k, v = chunks.reshape(2, n * heads, per_chunk * slots, dim)
    return k, v


def hide(visible: Tensor) -> Tensor:
    """What is added to scores: 0 where a key is visible, minus infinity elsewhere. Adding is cheaper than filling."""
    return torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -torch.inf)


def weigh(scores: Tensor, v: Tensor) -> Tensor:
    """Softmax over all chunks, then the weighted sum of v, chunk after chunk.

    scores [sequences, chunks, kv_heads, queries, width], in units of ln 2 (the queries carry QUERY_SCALE: on a CPU
    exp2 takes a fraction of the time of exp), -inf where hidden; v as `gather_kv` gives it.
    Returns [sequences, kv_heads, queries, head_dim].
    """
    sequences, chunks, heads, queries, width = scores.shape
    highest = scores.amax(dim=(1, 4), keepdim=True)
    weights = torch.exp2(scores - highest)
    values = torch.bmm(weights.view(-1, queries, width), v).view(sequences, chunks, heads, queries, -1)
    sums = weights.sum(-1, keepdim=True)
    # A running sum adds in order, whatever the number of chunks; a tree of partial sums would not.
    return values.cumsum(1)[:, -1] / sums.cumsum(1)[:, -1]


@dataclass(frozen=True, slots=True)
class GeneratedAttention:
    """Rows of generated positions: row r sees the first `lengths[r]` positions of its own block table.

    `tables` [rows, strips, blocks per strip] is padded with block 0, which no sequence owns.
    """

    pool: Tensor
    blocks: Tensor
    offsets: Tensor
    tables: Tensor
    lengths: Tensor

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, strips, per_strip = self.tables.shape
        heads, dim = q.shape[1:]
        kv_heads = k.shape[1]
        write_kv(self.pool, layer, self.blocks, self.offsets, k[:rows], v[:rows])
        keys, values = gather_kv(self.pool, layer, self.tables.view(rows * strips, per_strip))
        query = (q[:rows].float() * (QUERY_SCALE * dim**-0.5)).view(rows, 1, kv_heads, heads // kv_heads, dim)
        query = query.expand(-1, strips, -1, -1, -1).reshape(-1, heads // kv_heads, dim)
        scores = torch.bmm(query, keys.transpose(1, 2)).view(rows, strips, kv_heads, -1, KEY_STRIP)
        positions = torch.arange(strips * KEY_STRIP, device=q.device).view(strips, 1, 1, KEY_STRIP)
        scores += hide(positions < self.lengths.view(-1, 1, 1, 1, 1))
        out = torch.zeros_like(q)
        out[:rows] = weigh(scores, values).reshape(rows, heads, dim).to(q.dtype)
        return out


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

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = len(self.blocks)
        write_kv(self.pool, layer, self.blocks, self.offsets, k[:rows], v[:rows])
        out = torch.zeros_like(q)
        for span in self.spans:
            here = slice(span.row, span.row + span.count)
            out[here] = self.attend(layer, span, q[here], k.shape[1])
        return out

    def attend(self, layer: int, span: PromptSpan, q: Tensor, kv_heads: int) -> Tensor:
        """The span's queries, laid onto tiles that start at multiples of QUERY_TILE."""
        count, heads, dim = q.shape
        group = heads // kv_heads
        first = span.start // QUERY_TILE
        tiles = (span.start + count - 1) // QUERY_TILE - first + 1
        offset = span.start - first * QUERY_TILE
        laid = q.new_zeros(tiles * QUERY_TILE, heads, dim, dtype=torch.float32)
        laid[offset : offset + count] = q.float() * (QUERY_SCALE * dim**-0.5)
        laid = laid.view(tiles, QUERY_TILE, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
        laid = laid.reshape(tiles, kv_heads, group * QUERY_TILE, dim)
        keys, values = gather_kv(self.pool, layer, span.table)
        done = [self.tile(laid[i], keys, values, (first + i) * QUERY_TILE) for i in range(tiles)]
        out = torch.stack(done).view(tiles, kv_heads, group, QUERY_TILE, dim).permute(0, 3, 1, 2, 4)
        return out.reshape(tiles * QUERY_TILE, heads, dim)[offset : offset + count].to(q.dtype)

    def tile(self, q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
        """One tile of queries [kv_heads, group * QUERY_TILE, head_dim] at positions start…, over the chunks it sees."""
        kv_heads, queries, _ = q.shape
        # A tile never straddles two chunks (KEY_CHUNK is a multiple of QUERY_TILE): the span's table covers it.
        chunks = start // KEY_CHUNK + 1
        used = slice(0, chunks * kv_heads)
        scores = torch.bmm(q.repeat(chunks, 1, 1), keys[used].transpose(1, 2))
        scores = scores.view(1, chunks, kv_heads, queries, KEY_CHUNK)
        positions = torch.arange(chunks * KEY_CHUNK, device=q.device).view(1, chunks, 1, 1, KEY_CHUNK)
        asking = torch.arange(start, start + QUERY_TILE, device=q.device).repeat(queries // QUERY_TILE)
        scores += hide(positions <= asking.view(1, 1, 1, queries, 1))
        return weigh(scores, values[used])[0]
