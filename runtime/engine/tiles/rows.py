# SPDX-License-Identifier: Apache-2.0
"""The rows of a tile whose final hidden states are wanted, and what for."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.engine.sequences.batch import Span, Tile
from pontil.runtime.engine.sequences.draft_state import KEPT_STATES
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
    ends = ends_of(tile)
    drawing = [(end, span) for end, span in zip(ends, tile.spans, strict=True) if span.samples]
    drawn_rows = [row for end, span in drawing for row in range(end - len(span.drafts), end + 1)]
    recorded_rows = [
        (end - span.count + position - span.start, span.sequence, position)
        for end, span in zip(ends, tile.spans, strict=True)
        for position in unrecorded(span)
    ]
    state_rows = list(states_of(tile)) if keeps_states else []
    rows = sorted(
        {*drawn_rows, *(row for row, _, _ in recorded_rows), *(row for _, span_rows in state_rows for row in span_rows)}
    )
    places = {row: place for place, row in enumerate(rows)}
    plan = plan_of(tile, rows, [places[row] for row, _, _ in recorded_rows], [places[row] for row in drawn_rows])
    return TileRows(
        replace(plan, on_device=True) if on_device else plan,
        tile.spans,
        [span for _, span in drawing],
        [(sequence, position) for _, sequence, position in recorded_rows],
        [(span, [places[row] for row in span_rows]) for span, span_rows in state_rows],
    )


def plan_of(tile: Tile, rows: list[int], recorded: list[int], drawn: list[int]) -> TilePlan:
    ids = [token for span in tile.spans for token in span.ids]
    spans = [
        TileSpan(span.start, span.count, span.sequence.blocks, span.sequence.prefix.adapter.number)
        for span in tile.spans
    ]
    embeddings, media = embeddings_of(tile), None
    seeing = next((one for span in tile.spans if (one := span.sequence.streams.media) is not None), None)
    if seeing is not None:
        embeddings, media = media_of(tile, seeing)
    return TilePlan(tile.generated, ids, spans, rows, recorded, drawn, embeddings, media=media)


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
    inputs = [(span.sequence.streams.inputs, span) for span in tile.spans]
    if not inputs or inputs[0][0] is None:
        return None
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
