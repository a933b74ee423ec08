# SPDX-License-Identifier: Apache-2.0
"""The rows of a tile whose final hidden states are wanted, and what for."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.engine.sequences.batch import Span, Tile
from pontil.runtime.engine.sequences.draft_state import KEPT_STATES
from pontil.runtime.engine.sequences.prompt_keys import SaltedPrefix
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.sequences.streamed import MediaInputs
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.models.media_rows import MediaRows


@dataclass(frozen=True, slots=True)
class TileRows:
    """A tile of `spans` as a plan, and what its rows are for. `drawing` are the spans that draw, in the order of the
    plan's drawn rows. `recorded` has, for each recorded row, the prompt position whose logprobs it gives. `kept` are
    the spans whose states are kept, with the places of these among the plan's rows."""

    plan: TilePlan
    spans: tuple[Span, ...]
    drawing: list[Span]
    recorded: list[tuple[Sequence, int]]
    kept: list[tuple[Span, list[int]]]


def rows_of(tile: Tile, keeps_states: bool, on_device: bool = False) -> TileRows:
    drawing, drawn_rows = list[Span](), list[int]()
    recorded = list[tuple[int, Sequence, int]]()
    row = -1
    for span in tile.spans:
        row += span.count
        if span.samples:
            drawing.append(span)
            drawn_rows += range(row - len(span.drafts), row + 1)
        if span.sequence.params.prompt_logprobs is not None:
            first = row - span.count - span.start
            recorded += [(first + position, span.sequence, position) for position in unrecorded(span)]
    state_rows = list(states_of(tile)) if keeps_states else []
    others = {row for row, _, _ in recorded}.union(*(span_rows for _, span_rows in state_rows))
    rows = sorted(others.union(drawn_rows)) if others else drawn_rows
    places = dict(zip(rows, range(len(rows)), strict=True))
    recorded_places = [places[row] for row, _, _ in recorded]
    return TileRows(
        plan_of(tile, rows, recorded_places, [places[row] for row in drawn_rows], on_device),
        tile.spans,
        drawing,
        [(sequence, position) for _, sequence, position in recorded],
        [(span, [places[row] for row in span_rows]) for span, span_rows in state_rows],
    )


def plan_of(tile: Tile, rows: list[int], recorded: list[int], drawn: list[int], on_device: bool = False) -> TilePlan:
    ids = list[int]()
    for span in tile.spans:
        ids += span.ids
    spans = [tile_span(span, span.sequence.prefix) for span in tile.spans]
    embeddings, media = embeddings_of(tile), None
    seeing = next((one for span in tile.spans if (one := span.sequence.streams.media) is not None), None)
    if seeing is not None:
        embeddings, media = media_of(tile, seeing)
    return TilePlan(tile.generated, ids, spans, rows, recorded, drawn, embeddings, on_device, media)


def tile_span(span: Span, prefix: SaltedPrefix) -> TileSpan:
    blocks, drafts = span.sequence.blocks, len(span.drafts)
    return TileSpan(span.start, span.count, blocks, prefix.adapter.number, drafts, prefix.start)


def media_of(tile: Tile, seeing: MediaInputs) -> tuple[Tensor, MediaRows]:
    """The rows of a tile with this sequence, and what they have besides their embeddings."""
    streams = [(span, span.sequence.streams) for span in tile.spans]
    parts = [(one.media or seeing.beside(one.inputs)).rows(span.start, span.ids) for span, one in streams]
    layers = max(len(deep) for _, _, deep in parts)
    deep = torch.cat([pad(one, (0, 0, 0, 0, 0, layers - len(one))) for _, _, one in parts], 1)
    cosines, sines = (torch.cat([angles[place] for _, angles, _ in parts]) for place in range(2))
    return torch.cat([rows for rows, _, _ in parts]), MediaRows((cosines, sines), deep)


def embeddings_of(tile: Tile) -> Tensor | None:
    """The rows of a tile of sequences whose inputs are embeddings: all sequences of such a model have them."""
    if not tile.spans or tile.spans[0].sequence.streams.inputs is None:
        return None
    inputs = [(span.sequence.streams.inputs, span) for span in tile.spans]
    return torch.cat([rows.rows(span.start, span.count) for rows, span in inputs if rows is not None])


def states_of(tile: Tile) -> Iterator[tuple[Span, range]]:
    """Yield spans with the rows whose states their sequences keep: those of the newest known positions, and drafts."""
    for end, span in zip(ends_of(tile), tile.spans, strict=True):
        behind = span.start + span.count
        count = behind - max(span.start, span.sequence.length - KEPT_STATES)
        if span.sequence.draws and count > 0:
            yield span, range(end + 1 - count, end + 1)


def unrecorded(span: Span) -> range:
    """The prompt tokens whose logprobs the span's logits give and that are not yet recorded, by position.

    Each is recorded once, however often it is computed, in order from the first, which has none. A sequence whose first
    positions were not computed here records nothing.
    """
    logprobs = span.sequence.record.prompt_logprobs
    if span.sequence.params.prompt_logprobs is None:
        return range(0)
    if span.start == 0 and not logprobs:
        logprobs.append(None)
    if len(logprobs) <= span.start:
        return range(0)
    return range(max(len(logprobs), span.start + 1), min(span.start + span.count + 1, len(span.sequence.prompt)))


def ends_of(tile: Tile) -> list[int]:
    """The row of the last position of each span."""
    ends, row = [], -1
    for span in tile.spans:
        row += span.count
        ends.append(row)
    return ends
