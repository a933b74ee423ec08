# SPDX-License-Identifier: Apache-2.0
"""The numbers of a tile as the device reads them, written by the host. Rows are padded to a bucket."""

from array import array
from collections.abc import Sequence
from itertools import chain

import numpy as np
from torch import Tensor
from torch.nn.functional import pad

from pontil.gpu_ops.kernels.tile import TileSpan, adapters_of_rows
from pontil.gpu_ops.kv.device_tile import TILE_NUMBERS, cut
from pontil.gpu_ops.parameters.recurrent import SPAN_NUMBERS
from pontil.gpu_ops.products.adapters import row_tiles
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.engine.device.buckets import bucket_of
from pontil.runtime.engine.device.step_buffer import Array
from pontil.runtime.engine.tiles.plan import TilePlan

# Tables are as wide as a multiple of this: rows of a multiple of 16 bytes are read fastest.
TABLE_STEP = 4


def row_sections(plan: TilePlan, rows: int, layout: KVLayout) -> list[Array]:
    """The ids, positions and slots of `rows` rows, padding last, each int32 [rows]."""
    row_blocks, block_size = list[int](), layout.block_size
    for span in plan.spans:
        if span.count == 1:
            row_blocks.append(span.blocks[span.start // block_size])
        else:
            blocks = np.array(span.blocks[span.start // block_size : -(-(span.start + span.count) // block_size)])
            block_indices = np.arange(span.start, span.start + span.count) // block_size
            row_blocks += blocks[block_indices - block_indices[0]].tolist()
    ids, positions = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    slots, count = np.full(rows, -1, np.int32), len(plan.ids)
    ids[:count], positions[:count], slots[:count] = plan.ids, plan.positions, row_blocks
    # Slots follow each other in a page, of which a block may have several.
    pages, inside = np.divmod(positions[:count] % block_size, layout.page_size)
    slots[:count] = (slots[:count] * layout.block_pages + pages) * layout.page_size + inside
    return [ids, positions, slots]


def generated_sections(plan: TilePlan, rows: int, layout: KVLayout) -> list[Array]:
    """The sections of `row_sections`, and each row's table and length, int32 [rows]."""
    sections = row_sections(plan, rows, layout)
    owners, lengths = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    count = len(plan.ids)
    owners[:count] = np.repeat(np.arange(len(plan.spans), dtype=np.int32), [span.count for span in plan.spans])
    lengths[:count] = sections[1][:count] + 1
    return [*sections, owners, lengths]


def adapter_sections(plan: TilePlan, rows: int, most: int) -> list[Array]:
    """The rows of each adapter, of at most so many adapters: the sections of `row_tiles`."""
    return [*row_tiles(adapters_of_rows(plan.spans), rows, most)]


def state_sections(spans: Sequence[TileSpan], rows: int, most: int, block_size: int) -> list[Array]:
    """The numbers of a StateTile of so many rows, those of padding last, and at most so many spans, whose blocks have
    so many positions: their sizes follow from these."""
    numbers = np.zeros((min(rows, most), SPAN_NUMBERS + rows // block_size + 2), np.int32)
    owners, row = np.full(rows, -1, np.int32), 0
    for place, span in enumerate(spans):
        own = span.blocks[span.start // block_size : -(-(span.start + span.count) // block_size)]
        before = span.blocks[(span.start - 1) // block_size] if span.start else 0
        numbers[place, :SPAN_NUMBERS] = row, span.start, span.count, before
        numbers[place, SPAN_NUMBERS : SPAN_NUMBERS + len(own)] = own
        owners[row : row + span.count] = place
        row += span.count
    return [numbers, owners]


def given_sections(plan: TilePlan, rows: int) -> list[Array]:
    """The embeddings of a tile of `rows` rows that are no ids, float32 [rows, hidden_size], and what MediaRows has of
    them, padded with zeros."""
    if plan.embeddings is None:
        return []
    media = [] if plan.media is None else [*plan.media.angles, plan.media.deep]
    return [padded_rows(given, rows).cpu().numpy() for given in (plan.embeddings, *media)]


def padded_rows(given: Tensor, rows: int) -> Tensor:
    """Numbers [..., rows, columns] as float32, with rows of zeros behind them."""
    return pad(given.float(), (0, 0, 0, rows - given.shape[-2]))


def query_tiles(plan: TilePlan, sizes: tuple[int, ...]) -> Array:
    """The query tiles of a tile of prompts, int32 [count, 4], padded with empty ones to one of the sizes."""
    tiles: list[tuple[int, int, int, int]] = []
    row = 0
    for place, span in enumerate(plan.spans):
        tiles += cut(row, span.start, span.count, place)
        row += span.count
    padded_tiles = np.zeros((bucket_of(len(tiles), sizes), TILE_NUMBERS), np.int32)
    padded_tiles[: len(tiles)] = tiles
    return padded_tiles


def table(spans: Sequence[TileSpan], layout: KVLayout) -> Array:
    """The numbers of pages int32 [spans, pages], as wide as the longest needs: of blocks, unless these have several."""
    block_counts = [layout.blocks_for(span.start + span.count) for span in spans]
    pages = max(block_counts, default=0) * layout.kv_pages
    width = -(-pages // TABLE_STEP) * TABLE_STEP // layout.kv_pages
    numbers = np.zeros((len(spans), width), np.int32)
    span_blocks = [span.blocks[:count] for span, count in zip(spans, block_counts, strict=True)]
    # One list of all numbers, which becomes an array at once, and the places of a table's rows that they fill.
    numbers[np.arange(width) < np.array(block_counts)[:, None]] = array("i", list(chain.from_iterable(span_blocks)))
    if not layout.has_states:
        return numbers
    in_blocks = numbers[:, :, None] * layout.block_pages + np.arange(layout.kv_pages, dtype=np.int32)
    return in_blocks.reshape(len(spans), -1)
