# SPDX-License-Identifier: Apache-2.0
"""Rows that go through the kernels together, and the places of their keys and values."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.weights.structures import CELLS, KINDS, SpanFields, TileFields
from pontil.gpu_ops.kv.states import TileStates
from pontil.gpu_ops.parameters.adapters import NO_ADAPTER
from pontil.gpu_ops.parameters.cells import head_dim_of

# A span that verifies no guesses.
NOTHING_KEPT = -1


@dataclass(slots=True)
class TileSpan:
    """`count` neighbouring positions of one sequence from `start` on. `blocks` numbers its blocks, in order, at least
    as far as the last of these positions. Those from the position `adapted_from` on are computed with the adapter of
    that number, if not with none. The last ones are those of `drafts`, in number."""

    start: int
    count: int
    blocks: Sequence[int]
    adapter: int = NO_ADAPTER
    drafts: int = 0
    adapted_from: int = 0


class KernelTile:
    """The spans' rows one after the other, over a pool [block, layer, plane, kv_head, slot, cells of a row], in which
    the slots of a head are packed: see slots.py. `dtype` is the weights' type; the pool's may be of 8 bits instead.

    In each layer the keys and values of all rows are stored before any row is attended; a query sees those up to its
    own position. So the rows of one sequence may be cut into tiles in any way, prompts and answers alike. Within a
    tile, neighbouring positions of a sequence are in one span: two of them share words, and one thread stores a span.
    Its rows turn by the angles of their positions, or by `angles`: cosines and sines, float32 [rows, rotated / 2].
    Recurrent layers read `states`, of the same spans, and write those of spans that verify no guesses: of the others
    they keep the rows, for `accepted`.
    """

    def __init__(
        self,
        pool: Tensor,
        spans: Sequence[TileSpan],
        dtype: torch.dtype,
        angles: tuple[Tensor, Tensor] | None = None,
        states: TileStates | None = None,
    ) -> None:
        _, layers, planes, kv_heads, block_size, _ = pool.shape
        assert pool.dtype == dtype or pool.dtype in CELLS
        self.pool, self.spans, self.dtype, self.rows = pool, spans, dtype, 0
        self.tables: list[array[int]] = []
        fields = (SpanFields * len(spans))()
        for place, span in zip(fields, spans, strict=True):
            table = array("i", span.blocks[: -(-(span.start + span.count) // block_size)])
            self.tables.append(table)
            place.blocks, place.row = table.buffer_info()[0], self.rows
            place.start, place.count = span.start, span.count
            self.rows += span.count
        self.fields = TileFields(
            pool.data_ptr(), fields, len(spans), self.rows, KINDS[dtype], layers, planes, kv_heads,
            block_size, head_dim_of(pool), CELLS.get(pool.dtype, 0), 0, None, None,
            None, None, 0, 0, 0, None, 0,
        )  # fmt: skip
        self.states = states
        if states is not None:
            self.place(states)
        self.adapters = adapters_of_rows(spans)
        if self.adapters:
            self.fields.adapters = self.adapters.buffer_info()[0]
        self.angles = angles and (angles[0].contiguous(), angles[1].contiguous())
        if self.angles:
            assert all(len(part) == self.rows and part.dtype == torch.float32 for part in self.angles)
            self.fields.cosines, self.fields.sines = (part.data_ptr() for part in self.angles)

    def place(self, states: TileStates) -> None:
        """Give the kernels the places of these states."""
        assert states.pool.stride(1) == 1
        self.fields.states, self.fields.state_stride = states.pool.data_ptr(), states.pool.stride(0)
        self.fields.state_tokens = states.block_size
        if states.kept is not None:
            self.fields.kept, self.fields.kept_stride = states.kept.data_ptr(), states.kept.stride(0)
        kept = 0
        for place, span in enumerate(states.spans):
            table = array("i", span.blocks[: -(-(span.start + span.count) // states.block_size)])
            self.tables.append(table)
            fields = self.fields.spans[place]
            fields.state_blocks, fields.kept = table.buffer_info()[0], kept if span.verifies else NOTHING_KEPT
            kept += span.count if span.verifies else 0

    def accepted(self, counts: Sequence[int]) -> TileFields:
        """The rows that were kept as a tile: the first so many of each span that verified guesses, in order. It uses
        this one's tables."""
        own = [self.fields.spans[place] for place in range(self.fields.span_count)]
        spans = [SpanFields.from_buffer_copy(one) for one in own if one.kept != NOTHING_KEPT]
        tile = TileFields.from_buffer_copy(self.fields)
        tile.rows = sum(span.count for span in spans)
        for span, count in zip(spans, counts, strict=True):
            assert count <= span.count
            span.row, span.count, span.kept = span.kept, count, NOTHING_KEPT
        tile.spans, tile.span_count = (SpanFields * len(spans))(*spans), len(spans)
        return tile

    def only(self, rows: Sequence[int]) -> "KernelTile":
        """Some of the rows, in rising order, as a tile. It has no states: they would take the rows in once more."""
        row_set, first = set(rows), 0
        spans: list[TileSpan] = []
        for span in self.spans:
            inside = [offset for offset in range(span.count) if first + offset in row_set]
            begins = [offset for offset in inside if first + offset - 1 not in row_set or not offset]
            ends = [offset + 1 for offset in inside if first + offset + 1 not in row_set or offset + 1 == span.count]
            spans += [
                replace(span, start=span.start + at, count=end - at) for at, end in zip(begins, ends, strict=True)
            ]
            first += span.count
        angles = self.angles and (self.angles[0][list(rows)], self.angles[1][list(rows)])
        return KernelTile(self.pool, spans, self.dtype, angles)


def adapters_of_rows(spans: Sequence[TileSpan]) -> "array[int]":
    """The number of each row's adapter; empty if no row has one."""
    if all(span.adapter == NO_ADAPTER for span in spans):
        return array("i")
    numbers = [
        span.adapter if position >= span.adapted_from else NO_ADAPTER
        for span in spans
        for position in range(span.start, span.start + span.count)
    ]
    return array("i", numbers if any(number != NO_ADAPTER for number in numbers) else ())
