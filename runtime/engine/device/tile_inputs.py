# SPDX-License-Identifier: Apache-2.0
"""The numbers of a tile as the device reads them, written by the host. Rows are padded to a bucket."""

from array import array
from collections.abc import Sequence

import numpy as np

from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.gpu_ops.kv.device_tile import TILE_NUMBERS, cut
from pontil.runtime.engine.device.buckets import bucket_of
from pontil.runtime.engine.device.step_buffer import Array
from pontil.runtime.engine.tiles.plan import TilePlan

# Tables are as wide as a multiple of this: rows of a multiple of 16 bytes are read fastest.
TABLE_STEP = 4


def row_sections(plan: TilePlan, rows: int, block_size: int) -> list[Array]:
    """The ids, positions and slots of `rows` rows, padding last, each int32 [rows]."""
    ids, positions = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    slots = np.full(rows, -1, np.int32)
    ids[: len(plan.ids)] = plan.ids
    row = 0
    for span in plan.spans:
        if span.count == 1:
            block, offset = divmod(span.start, block_size)
            positions[row], slots[row] = span.start, span.blocks[block] * block_size + offset
        else:
            own = np.arange(span.start, span.start + span.count, dtype=np.int32)
            blocks = blocks_of(span, block_size)
            here = slice(row, row + span.count)
            positions[here], slots[here] = own, blocks[own // block_size] * block_size + own % block_size
        row += span.count
    return [ids, positions, slots]


def generated_sections(plan: TilePlan, rows: int, block_size: int) -> list[Array]:
    """The sections of `row_sections`, and each row's table and length, int32 [rows]."""
    made = row_sections(plan, rows, block_size)
    owners, lengths = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    used = len(plan.ids)
    owners[:used] = np.repeat(np.arange(len(plan.spans), dtype=np.int32), [span.count for span in plan.spans])
    lengths[:used] = made[1][:used] + 1
    return [*made, owners, lengths]


def query_tiles(plan: TilePlan, sizes: tuple[int, ...]) -> Array:
    """The query tiles of a tile of prompts, int32 [count, 4], padded with empty ones to one of the sizes."""
    found: list[tuple[int, int, int, int]] = []
    row = 0
    for place, span in enumerate(plan.spans):
        found += cut(row, span.start, span.count, place)
        row += span.count
    made = np.zeros((bucket_of(len(found), sizes), TILE_NUMBERS), np.int32)
    made[: len(found)] = found
    return made


def table(spans: Sequence[TileSpan], block_size: int) -> Array:
    """Block numbers int32 [spans, blocks], as wide as the longest needs."""
    own = [blocks_of(span, block_size) for span in spans]
    longest = max((len(one) for one in own), default=0)
    made = np.zeros((len(own), -(-longest // TABLE_STEP) * TABLE_STEP), np.int32)
    for place, one in enumerate(own):
        made[place, : len(one)] = one
    return made


def blocks_of(span: TileSpan, block_size: int) -> Array:
    """The numbers of the blocks up to the span's end, int32 [blocks]."""
    needed = -(-(span.start + span.count) // block_size)
    return np.frombuffer(array("i", span.blocks[:needed]), np.int32)
