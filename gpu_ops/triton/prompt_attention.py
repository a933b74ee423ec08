# SPDX-License-Identifier: Apache-2.0
"""Attention of prompts, of any number of sequences in one launch. A program computes one query tile for some query
heads of a KV head, over the keys from the text's beginning (or its window's) in chunks."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.triton.launch import STAGES, WARPS, WIDE, ceil_div, launch, power_of_2, processor
from pontil.gpu_ops.triton.paged_kv import geometry, loadable
from pontil.gpu_ops.triton.softmax import LOG2_E, QUERY_SCALE, add_chunk, rest_block


@dataclass(frozen=True, slots=True)
class PromptTiles:
    """Sizes: `keys` of a chunk, of which the order of additions depends; `queries` of a query tile and `heads` that are
    computed together."""

    keys: int
    heads: int = 1
    queries: int = 64
    warps: int = WARPS
    stages: int = STAGES


@triton.jit(
    do_not_specialize=["layer", "table_row"],
    do_not_specialize_on_alignment=["tables", "query_tiles"],
)
def prompt_kernel(
    q, pool, tables, query_tiles, sinks, out, layer, table_row, q_row, q_head, out_row, out_head, scale,
    LAYERS: tl.constexpr, PLANES: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
    CELLS: tl.constexpr, GROUP: tl.constexpr, VALUES: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    HEADS: tl.constexpr, PIECES: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, SPLIT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    about = query_tiles + tl.program_id(0) // PIECES * 4
    first_row, first, count = tl.load(about), tl.load(about + 1), tl.load(about + 2)
    kv_head, part = tl.program_id(1) % KV_HEADS, tl.program_id(1) // KV_HEADS
    # A query's place in its tile follows from its position, and so does each chunk that is added.
    begin = (first // (PIECES * QUERIES) * PIECES + tl.program_id(0) % PIECES) * QUERIES
    if (begin + QUERIES <= first) | (begin >= first + count):
        return
    place = tl.arange(0, HEADS * QUERIES)
    of_group, asking = part * HEADS + place // QUERIES, begin + place % QUERIES
    heads = kv_head * GROUP + of_group
    ours = (of_group < GROUP) & (asking >= first) & (asking < first + count)
    # Within a tile 32 bits count everything, and need half the registers.
    above, rows = first_row.to(tl.int64), asking - first
    cell = tl.arange(0, MAIN)
    query = q + above * q_row + (rows * q_row + heads * q_head)[:, None]
    kind = q.dtype.element_ty if CELLS > 0 else pool.dtype.element_ty
    inside = ours[:, None] & (cell < VALUES)[None, :]
    queries = tl.load(query + cell[None, :], mask=inside, other=0.0).to(kind)
    rest_queries = queries
    if REST > 0:
        rest_cell = tl.arange(0, REST)
        some = ours[:, None] & (rest_cell < WIDTH - VALUES)[None, :]
        rest_queries = tl.load(query + VALUES + rest_cell[None, :], mask=some, other=0.0).to(kind)
    table = tables + tl.load(about + 3).to(tl.int64) * table_row
    sums = tl.zeros([HEADS * QUERIES, MAIN], tl.float32)
    if SINKS:
        peak = tl.load(sinks + heads, mask=of_group < GROUP, other=0.0) * LOG2_E
        total = tl.full([HEADS * QUERIES], 1.0, tl.float32)
    else:
        peak = tl.full([HEADS * QUERIES], -float("inf"), tl.float32)
        total = tl.zeros([HEADS * QUERIES], tl.float32)
    low = tl.maximum(begin - WINDOW + 1, 0) // KEYS * KEYS if WINDOW > 0 else begin * 0
    if SPLIT:
        # All these keys are before the tile: every query sees them.
        for start in range(0, begin // KEYS * KEYS, KEYS):
            sums, total, peak = add_chunk(
                sums, total, peak, queries, rest_queries, pool, table, layer, kv_head, start, first, asking, scale,
                LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH, CELLS, VALUES, MAIN, REST, KEYS, WINDOW, False, WIDE,
            )  # fmt: skip
        low = begin // KEYS * KEYS
    for start in range(low, begin + QUERIES, KEYS):
        sums, total, peak = add_chunk(
            sums, total, peak, queries, rest_queries, pool, table, layer, kv_head, start, first + count, asking, scale,
            LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH, CELLS, VALUES, MAIN, REST, KEYS, WINDOW, True, WIDE,
        )  # fmt: skip
    result = (sums / total[:, None]).to(out.dtype.element_ty)
    place = (rows * out_row + heads * out_head)[:, None] + cell[None, :]
    tl.store(out + above * out_row + place, result, mask=inside)


def prompt_tiles(group: int, main: int, wide: bool, scaled: bool = False) -> PromptTiles:
    """Choose sizes for `group` query heads of a KV head and blocks of `main` numbers, `wide` if these are float32 and
    `scaled` if cells of 8 bits become numbers in registers, of which more are needed then."""
    if wide:
        return PromptTiles(32 if main <= 64 else 16, queries=16)
    kind, capability = processor()
    heads, newer = 2 if group % 2 == 0 else 1, capability >= 90
    fewer = 2 if scaled and not newer else 1
    if main <= 128:
        return PromptTiles(64 // fewer, heads, warps=4 * heads)
    if main <= 256:
        return PromptTiles(32, heads, warps=4 * heads) if newer else PromptTiles(32 // fewer, warps=8)
    # The sums of 64 queries fill the registers of older processors.
    return PromptTiles(16 if kind == "hip" else 32, queries=64 if newer and not scaled else 32, warps=8)


def prompt(
    pool: Tensor,
    layer: LayerAttention,
    q: Tensor,
    tables: Tensor,
    query_tiles: Tensor,
    query_tile: int,
    tiles: PromptTiles | None = None,
) -> Tensor:
    """Causal attention of q [rows, heads, head_dim], whose keys are stored already. `tables` and `query_tiles` are
    those of a DeviceTile, of `query_tile` positions. Rows of no query tile are zeros.

    Returns [rows, heads, value_dim] in q's type; `value_dim` is less than head_dim where the first numbers of a key are
    its value."""
    constants, (rows, heads, dim) = geometry(pool), q.shape
    kv_heads, values, window, sinks = constants["KV_HEADS"], layer.value_dim or dim, layer.window, layer.sinks
    group, main = heads // kv_heads, max(16, power_of_2(values))
    scaled = constants["CELLS"] > 0
    tiles = tiles or prompt_tiles(group, main, (q if scaled else pool).dtype == torch.float32, scaled)
    pool = loadable(pool)
    assert q.stride(2) == 1 and dim == constants["WIDTH"] and (values == dim or constants["PLANES"] == 1)
    pieces = query_tile // tiles.queries
    assert query_tile % tiles.queries == 0
    out = torch.zeros(rows, heads, values, dtype=q.dtype, device=q.device)
    sizes = {"VALUES": values, "MAIN": main, "HEADS": tiles.heads, "QUERIES": tiles.queries, "KEYS": tiles.keys}
    launch(
        prompt_kernel, (len(query_tiles) * pieces, kv_heads * ceil_div(group, tiles.heads)), q, pool, tables,
        query_tiles, query_tiles if sinks is None else sinks, out, layer.layer, tables.stride(0), *q.stride()[:2],
        *out.stride()[:2], layer.scale * QUERY_SCALE, **constants, **sizes, GROUP=group, REST=rest_block(dim - values),
        PIECES=pieces, WINDOW=window or 0, SINKS=sinks is not None, SPLIT=window is None and main <= 256, WIDE=WIDE,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out
