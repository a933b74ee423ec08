# SPDX-License-Identifier: Apache-2.0
"""The work of one step as plain numbers: no tensor here.

A step is a list of tiles that run one after the other. Where products are batch-invariant only within classes of row
counts, a tile holds prompt positions or generated positions, never both, because the two kinds go through products of
different classes (rule C16).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from pontil.gpu_ops.parameters.adapters import NO_ADAPTER
from pontil.gpu_ops.products.batch_invariance import GENERATED_ROWS, PROMPT_ROWS
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.foundation.value import value

# Weights are read once for each tile, and a tile's intermediate results take memory.
MIXED_ROWS = 512


@value(frozen=True, slots=True)
class Span:
    """Positions [start, start + count) of a sequence, the last of them being those of `drafts`, if any. `samples`: the
    last before these is the sequence's newest token, so its logits give the next one, and those of each draft the one
    that follows if the draft is accepted."""

    sequence: Sequence
    start: int
    count: int
    drafts: tuple[int, ...] = ()

    @property
    def samples(self) -> bool:
        sequence = self.sequence
        return sequence.draws and self.start + self.count == sequence.length + len(self.drafts)

    @property
    def ids(self) -> list[int]:
        """The tokens at its positions, the last of them being its drafts; unknown ones as the sequence tells them."""
        sequence, behind = self.sequence, self.start + self.count - len(self.drafts)
        if self.count == 1 and not self.drafts:
            return [sequence.token(self.start)]
        if behind <= len(sequence.prompt):
            return sequence.prompt[self.start : behind]
        return [*map(sequence.token, range(self.start, behind)), *self.drafts]


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows that go through the model together."""

    generated: bool
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        return sum(span.count for span in self.spans)


@value(frozen=True, slots=True)
class Batch:
    """The spans that the scheduler gave each sequence in this step, in insertion order. Before them, whole blocks are
    copied: `copies` are pairs of (from, to)."""

    spans: tuple[Span, ...]
    copies: tuple[tuple[int, int], ...] = ()

    def without(self, some: Collection[Sequence]) -> "Batch":
        """Return the batch without these sequences. Its copies stay."""
        return replace(self, spans=tuple(span for span in self.spans if span.sequence not in some)) if some else self

    def tiles(self, prompt_rows: int = PROMPT_ROWS, generated_rows: int = GENERATED_ROWS) -> list[Tile]:
        """Prompt tiles first, then generated ones, of at most so many rows; within a sequence always in the order of
        positions."""
        prompt_spans, generated_spans = list[Span](), list[Span]()
        for span in self.spans:
            inside = len(span.sequence.prompt) - span.start
            if inside > 0:
                prompt_spans.append(span if inside >= span.count else Span(span.sequence, span.start, inside))
            if inside <= 0:
                generated_spans.append(span)
            elif inside < span.count:
                generated_spans.append(Span(span.sequence, span.start + inside, span.count - inside, span.drafts))
        return pack(prompt_spans, prompt_rows, False) + pack(generated_spans, generated_rows, True)

    def mixed_tiles(self) -> list[Tile]:
        """Tiles for kernels that are always batch-invariant: all positions together. In each, the rows of an adapter
        are neighbours: those are multiplied together."""
        tiles = pack(list(self.spans), MIXED_ROWS, False)
        return [Tile(False, tuple(sorted(tile.spans, key=adapter_number))) for tile in tiles]


def adapter_number(span: Span) -> int:
    prefix = span.sequence.prefix
    return prefix.adapter.number if span.start + span.count > prefix.start else NO_ADAPTER


def pack(spans: list[Span], limit: int, generated: bool) -> list[Tile]:
    """Fill tiles of at most `limit` rows in order, cutting spans where a tile is full. Spans with drafts come first and
    are few enough for the first tile."""
    tiles: list[list[Span]] = []
    room = 0
    for span in spans:
        start, end = span.start, span.start + span.count
        while start < end:
            if room == 0:
                tiles.append([])
                room = limit
            count = min(room, end - start)
            assert count == span.count or not span.drafts, "drafts are verified in one tile"
            tiles[-1].append(span if count == span.count else Span(span.sequence, start, count))
            start, room = start + count, room - count
    return [Tile(generated, tuple(tile)) for tile in tiles]
