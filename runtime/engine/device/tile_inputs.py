# SPDX-License-Identifier: Apache-2.0
"""The numbers of a tile as the device reads them, written by the host. Rows are padded to a bucket."""

from array import array
from collections.abc import Sequence
from itertools import chain

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
    owned = list[int]()
    for span in plan.spans:
        if span.count == 1:
            owned.append(span.blocks[span.start // block_size])
        else:
            blocks = np.array(span.blocks[span.start // block_size : -(-(span.start + span.count) // block_size)])
            own = np.arange(span.start, span.start + span.count) // block_size
            owned += blocks[own - own[0]].tolist()
    ids, positions = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    slots, used = np.full(rows, -1, np.int32), len(plan.ids)
    ids[:used], positions[:used], slots[:used] = plan.ids, plan.positions, owned
    slots[:used] = slots[:used] * block_size + positions[:used] % block_size
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
    needed = [-(-(span.start + span.count) // block_size) for span in spans]
    width = -(-max(needed, default=0) // TABLE_STEP) * TABLE_STEP
    made = np.zeros((len(spans), width), np.int32)
    own = [span.blocks[:count] for span, count in zip(spans, needed, strict=True)]
    # One list of all numbers, which becomes an array at once, and the places of a table's rows that they fill.
    made[np.arange(width) < np.array(needed)[:, None]] = array("i", list(chain.from_iterable(own)))
    return made
