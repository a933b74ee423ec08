# SPDX-License-Identifier: Apache-2.0
"""The parts that kernels of attention share: reading keys, scores, and the running softmax.

Scores are in units of ln 2: `scale` carries QUERY_SCALE. Adding a chunk that is hidden from a
row changes none of its bits: its weights are exact zeros, and the peak stays.
"""

import math

import triton
import triton.language as tl

from pontil.gpu_ops.triton.launch import power_of_2
from pontil.gpu_ops.triton.paged_kv import numbers_in, row_places, scales_at

QUERY_SCALE = 1 / math.log(2)
LOG2_E = tl.constexpr(QUERY_SCALE)


def rest_block(size: int) -> int:
    """The block that holds the numbers of a key that are not of its value, of which there may be none."""
    return max(16, power_of_2(size)) if size else 0


@triton.jit
def add_product(sums, a, b, WIDE: tl.constexpr):
    if WIDE:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sums, input_precision="ieee")


@triton.jit
def rows_at(
    pool, table, layer, plane, head, positions, is_stored,
    LAYERS: tl.constexpr, PLANES: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
    CELLS: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Pointers to the first cells of these positions' rows, [positions]."""
    if BOUNDED:
        blocks = tl.load(table + positions // SLOTS, mask=is_stored, other=0)
    else:
        blocks = tl.load(table + positions // SLOTS)
    places = row_places(blocks, positions % SLOTS, layer, plane, head, LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH, CELLS)
    return pool + places


@triton.jit
def load_rows(
    rows,
    is_stored,
    first,
    kind: tl.constexpr,
    CELLS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BOUNDED: tl.constexpr,
):
    """The numbers in cells [first, first + SIZE) of these rows, [rows, BLOCK]; zeros of those that are not stored: what
    lies there may be no number, which no weight of zero takes away. Not BOUNDED: all are stored."""
    cell = tl.arange(0, BLOCK)
    pointers = rows[:, None] + (first + cell)[None, :]
    if BOUNDED and BLOCK > SIZE:
        cells = tl.load(pointers, mask=is_stored[:, None] & (cell < SIZE)[None, :], other=0)
    elif BOUNDED:
        cells = tl.load(pointers, mask=is_stored[:, None], other=0)
    elif BLOCK > SIZE:
        cells = tl.load(pointers, mask=(cell < SIZE)[None, :], other=0)
    else:
        cells = tl.load(pointers)
    return numbers_in(cells, kind, CELLS)


@triton.jit
def add_chunk(
    sums, total, peak, queries, rest_queries, pool, table, layer, head, start, end, asking, scale,
    LAYERS: tl.constexpr, PLANES: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
    CELLS: tl.constexpr, VALUES: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, MASKED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add the keys at [start, start + KEYS) to the state of queries at positions `asking`: their sums of values
    [queries, MAIN], sums of weights and highest scores. Not MASKED: all queries see all these keys, wherever `end` is.

    Cells of 8 bits are multiplied as they are: a key's scale is a factor of its scores, a value's of its weights."""
    positions = start + tl.arange(0, KEYS)
    is_stored = positions < end
    rows = rows_at(
        pool, table, layer, 0, head, positions, is_stored, LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH, CELLS, MASKED
    )
    kind: tl.constexpr = queries.dtype
    keys = load_rows(rows, is_stored, 0, kind, CELLS, VALUES, MAIN, MASKED)
    scores = tl.zeros([queries.shape[0], KEYS], tl.float32)
    scores = add_product(scores, queries, tl.trans(keys), WIDE)
    if REST > 0:
        rest_keys = load_rows(rows, is_stored, VALUES, kind, CELLS, WIDTH - VALUES, REST, MASKED)
        scores = add_product(scores, rest_queries, tl.trans(rest_keys), WIDE)
    scores *= scale
    if CELLS > 0:
        scores *= scales_at(rows, is_stored, WIDTH, CELLS, MASKED)[None, :]
    if MASKED:
        visible = positions[None, :] <= asking[:, None]
        if WINDOW > 0:
            visible = visible & (positions[None, :] > asking[:, None] - WINDOW)
        scores = tl.where(visible, scores, -float("inf"))
    highest = tl.maximum(peak, tl.max(scores, 1))
    # A row that has seen no key yet has no peak: subtracting it would make it NaN.
    safe = tl.where(highest == -float("inf"), 0.0, highest)
    weights = tl.exp2(scores - safe[:, None])
    fade = tl.exp2(peak - safe)
    total = total * fade + tl.sum(weights, 1)
    values = keys
    if PLANES == 2:
        rows = rows_at(
            pool, table, layer, 1, head, positions, is_stored, LAYERS, PLANES, KV_HEADS, SLOTS, WIDTH, CELLS, MASKED
        )
        values = load_rows(rows, is_stored, 0, kind, CELLS, VALUES, MAIN, MASKED)
    sums *= fade[:, None]
    if CELLS > 0:
        weights *= scales_at(rows, is_stored, WIDTH, CELLS, MASKED)[None, :]
    if CELLS > 0 and kind == tl.float16:
        # A weight times a scale may be too small for float16.
        sums = add_product(sums, weights.to(tl.bfloat16), values.to(tl.bfloat16), WIDE)
    else:
        sums = add_product(sums, weights.to(kind), values, WIDE)
    return sums, total, highest
