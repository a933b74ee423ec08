# SPDX-License-Identifier: Apache-2.0
"""Attention of generated positions: one query, many keys.

The positions that a row sees are cut into strips. Their number and size follow from the row's length alone, and so do
a row's bits. One kernel computes each strip's part, by as many programs as there are; another adds the parts up in the
order of strips. Query heads of one KV head share what is read.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.triton.launch import STAGES, WARPS, WIDE, ceil_div, launch, power_of_2, processor
from pontil.gpu_ops.triton.paged_kv import geometry, loadable
from pontil.gpu_ops.triton.softmax import LOG2_E, QUERY_SCALE, add_chunk, rest_block

# Programs that keep a large device busy.
PROGRAMS = 1024
# Bytes of parts that exist at a time.
PARTS_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    """Sizes of which the order of additions depends: `keys` of a chunk, positions of the shortest `strip`, and `most`
    strips of a row, which are longer where `most` of the shortest do not suffice. `heads` are computed together."""

    keys: int
    heads: int
    strip: int = 256
    most: int = 64
    warps: int = WARPS
    stages: int = STAGES


@triton.jit
def seen_strips(length, KEYS: tl.constexpr, STRIP: tl.constexpr, MOST: tl.constexpr, WINDOW: tl.constexpr):
    """The first position of a row's first strip, the strips' size and their number."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0) // KEYS * KEYS
    positions = length - first
    size = tl.maximum(tl.cdiv(positions, STRIP * MOST), 1) * STRIP
    return first, size, tl.cdiv(positions, size)


@triton.jit(
    do_not_specialize=["layer", "first_row", "room", "table_row"],
    do_not_specialize_on_alignment=["tables", "owners", "lengths"],
)
def strips_kernel(
    q, pool, tables, owners, lengths, parts, weights, layer, first_row, room, table_row, q_row, q_head, scale,
    LAYERS: tl.constexpr, PLANES: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
    CELLS: tl.constexpr, GROUP: tl.constexpr, VALUES: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    HEADS: tl.constexpr, KEYS: tl.constexpr, STRIP: tl.constexpr, MOST: tl.constexpr, WINDOW: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One part of the heads of a KV head of a row: every strip whose number is that of the program, or so many more."""
    local = tl.program_id(0).to(tl.int64)
    row = first_row + local
    length = tl.load(lengths + row)
    first, size, count = seen_strips(length, KEYS, STRIP, MOST, WINDOW)
    if tl.program_id(2) >= count:
        return
    kv_head, part = tl.program_id(1) % KV_HEADS, tl.program_id(1) // KV_HEADS
    of_group = part * HEADS + tl.arange(0, HEADS)
    heads, ours = kv_head * GROUP + of_group, of_group < GROUP
    cell = tl.arange(0, MAIN)
    # Within a row 32 bits count everything, and need half the registers.
    query = q + row * q_row + heads[:, None] * q_head
    kind = q.dtype.element_ty if CELLS > 0 else pool.dtype.element_ty
    inside = ours[:, None] & (cell < VALUES)[None, :]
    queries = tl.load(query + cell[None, :], mask=inside, other=0.0).to(kind)
    rest_queries = queries
    if REST > 0:
        rest_cell = tl.arange(0, REST)
        some = ours[:, None] & (rest_cell < WIDTH - VALUES)[None, :]
        rest_queries = tl.load(query + VALUES + rest_cell[None, :], mask=some, other=0.0).to(kind)
    table = tables + tl.load(owners + row).to(tl.int64) * table_row
    asking = tl.zeros([HEADS], tl.int32) + length - 1
    for strip in range(tl.program_id(2), count, tl.num_programs(2)):
        begin = first + strip * size
        sums = tl.zeros([HEADS, MAIN], tl.float32)
        total = tl.zeros([HEADS], tl.float32)
        peak = tl.full([HEADS], -float("inf"), tl.float32)
        for start in range(begin, tl.minimum(begin + size, length), KEYS):
            sums, total, peak = add_chunk(
                sums, total, peak, queries, rest_queries, pool, table, layer, kv_head, start, length, asking, scale,
                LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH, CELLS, VALUES, MAIN, REST, KEYS, WINDOW, True, WIDE,
            )  # fmt: skip
        place = local * KV_HEADS * GROUP * room
        of_row = heads * room + strip
        tl.store(parts + place * VALUES + of_row[:, None] * VALUES + cell[None, :], sums, mask=inside)
        tl.store(weights + place * 2 + of_row * 2, total, mask=ours)
        tl.store(weights + place * 2 + of_row * 2 + 1, peak, mask=ours)


@triton.jit(do_not_specialize=["first_row", "room"], do_not_specialize_on_alignment=["lengths"])
def combine_kernel(
    parts, weights, lengths, sinks, out, first_row, room,
    VALUES: tl.constexpr, MAIN: tl.constexpr, KEYS: tl.constexpr, STRIP: tl.constexpr, MOST: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Add the parts of one head of one row, in the order of strips. Zeros for rows that see nothing."""
    local, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = first_row + local
    length = tl.load(lengths + row)
    _, _, count = seen_strips(length, KEYS, STRIP, MOST, WINDOW)
    place = (local * tl.num_programs(1) + head) * room
    peak = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    if SINKS:
        peak, total = tl.load(sinks + head) * LOG2_E, total + 1.0
    cell = tl.arange(0, MAIN)
    inside = cell < VALUES
    sums = tl.zeros([MAIN], tl.float32)
    for strip in range(0, count):
        part = tl.load(parts + (place + strip) * VALUES + cell, mask=inside, other=0.0)
        own_total, own_peak = tl.load(weights + (place + strip) * 2), tl.load(weights + (place + strip) * 2 + 1)
        highest = tl.maximum(peak, own_peak)
        fade, own_fade = tl.exp2(peak - highest), tl.exp2(own_peak - highest)
        total = total * fade + own_total * own_fade
        sums = sums * fade + part * own_fade
        peak = highest
    result = tl.where(length > 0, sums / total, 0.0)
    where = out + (row * tl.num_programs(1) + head) * VALUES + cell
    tl.store(where, result.to(out.dtype.element_ty), mask=inside)


def decode_tiles(group: int, main: int, wide: bool, scaled: bool = False) -> DecodeTiles:
    """Choose sizes for `group` query heads of a KV head and blocks of `main` numbers, `wide` if these are float32 and
    `scaled` if cells of 8 bits become numbers in registers, of which more are needed then."""
    amd, heads = processor()[0] == "hip", min(32, max(16, power_of_2(group)))
    if wide:
        return DecodeTiles(max(16, min(32, 4096 // main)), 16, most=16 if main > 256 else 64, stages=2)
    keys = 64 if main <= 128 else 32
    if scaled and (amd or 128 < main <= 256):
        keys //= 2
    # On AMD more stages would need more shared memory than there is.
    stages = 2 if amd else 3 if scaled and main > 128 else 5
    if main > 256:
        return DecodeTiles(keys, 16 if amd else heads, most=16, warps=8, stages=stages)
    return DecodeTiles(keys, heads, stages=stages)


def decode(
    pool: Tensor,
    layer: LayerAttention,
    q: Tensor,
    tables: Tensor,
    owners: Tensor,
    lengths: Tensor,
    tiles: DecodeTiles | None = None,
) -> Tensor:
    """Attention of q [rows, heads, head_dim]: row r sees the first `lengths[r]` positions of block table
    `tables[owners[r]]`, all int32. `tables` has room for the longest of them. Rows of length 0 are zeros.

    Returns [rows, heads, value_dim] in q's type; `value_dim` is less than head_dim where the first numbers of a key are
    its value. Launches depend on shapes only."""
    constants, (rows, heads, dim) = geometry(pool), q.shape
    kv_heads, values, window, sinks = constants["KV_HEADS"], layer.value_dim or dim, layer.window, layer.sinks
    group, main = heads // kv_heads, max(16, power_of_2(values))
    scaled = constants["CELLS"] > 0
    tiles = tiles or decode_tiles(group, main, (q if scaled else pool).dtype == torch.float32, scaled)
    pool = loadable(pool)
    assert q.stride(2) == 1 and dim == constants["WIDTH"] and (values == dim or constants["PLANES"] == 1)
    positions = tables.shape[1] * constants["SLOTS"]
    seen_positions = positions if window is None else min(positions, window + tiles.keys - 1)
    room = min(tiles.most, ceil_div(seen_positions, tiles.strip))
    at_once = min(rows, max(1, PARTS_BYTES // (heads * room * (values + 2) * 4)))
    parts = torch.empty(at_once, heads, room, values, dtype=torch.float32, device=q.device)
    weights = torch.empty(at_once, heads, room, 2, dtype=torch.float32, device=q.device)
    out = torch.empty(rows, heads, values, dtype=q.dtype, device=q.device)
    sizes = {"VALUES": values, "MAIN": main, "KEYS": tiles.keys, "STRIP": tiles.strip, "MOST": tiles.most}
    head_parts = kv_heads * ceil_div(group, tiles.heads)
    programs = min(room, ceil_div(PROGRAMS, at_once * head_parts))
    for first in range(0, rows, at_once):
        count = min(at_once, rows - first)
        launch(
            strips_kernel, (count, head_parts, programs), q, pool, tables, owners, lengths, parts, weights, layer.layer,
            first, room, tables.stride(0), *q.stride()[:2], layer.scale * QUERY_SCALE, **constants, **sizes,
            GROUP=group, REST=rest_block(dim - values), HEADS=tiles.heads, WINDOW=window or 0, WIDE=WIDE,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        launch(
            combine_kernel, (count, heads), parts, weights, lengths, lengths if sinks is None else sinks, out, first,
            room, **sizes, WINDOW=window or 0, SINKS=sinks is not None, num_warps=1 if main <= 256 else 4,
        )  # fmt: skip
    return out
