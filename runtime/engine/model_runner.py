# SPDX-License-Identifier: Apache-2.0
"""Runs a batch through the model. Takes no scheduling decision."""

import logging
from collections.abc import Iterable

import torch
from torch import Tensor

from pontil.gpu_ops.attention import (
    KEY_CHUNK,
    KEY_STRIP,
    GeneratedAttention,
    PagedAttention,
    PromptAttention,
    PromptSpan,
)
from pontil.gpu_ops.batch_invariance import ANY_ROWS, BatchInvariance, measure, same_on_one_thread
from pontil.gpu_ops.kernels.linear import Product
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.linear import Linear
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.batch import Batch, Span, Tile
from pontil.runtime.engine.logprobs import logprobs_of
from pontil.runtime.engine.sampler import Sampled, sample_rows
from pontil.runtime.engine.sequence import Sequence
from pontil.runtime.models.model import Model

logger = logging.getLogger("pontil.engine")

# Rows of logits that are computed together.
HEAD_ROWS = 32


class ModelRunner:
    """The owner of the model and the KV memory that it writes."""

    def __init__(self, model: Model, storage: KVStorage) -> None:
        assert storage.layout.packed == (model.kernels is not None), "the blocks are another's"
        self.model, self.storage = model, storage
        self.device = model.device
        self.block_size = storage.layout.block_size
        if model.kernels is not None:
            self.classes: BatchInvariance = ANY_ROWS
            return
        if self.device.type == "cpu" and torch.get_num_threads() > 1:
            self.agree_with_fewer_cores()
        self.classes = measure(torch_products(model.linears), torch_products(model.head))

    @property
    def rows_are_alike(self) -> bool:
        """Return whether a position's KV has the same bits in a prompt and in an answer."""
        return self.model.kernels is not None

    def agree_with_fewer_cores(self) -> None:
        """Use one thread if results depend on the number of threads: tokens must not depend on how many cores a worker
        was given (C16)."""
        if not same_on_one_thread(torch_products(self.model.linears), torch_products(self.model.head)):
            logger.warning("this library's results depend on the number of threads: computing with one")
            torch.set_num_threads(1)

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Sampled]:
        """Compute every tile; return the sampled tokens of each sequence whose known tokens are all computed."""
        if batch.copies:
            self.storage.copy(list(batch.copies))
        tiles = batch.tiles() if self.model.kernels is None else batch.mixed_tiles()
        return [sampled for tile in tiles for sampled in self.run_tile(tile)]

    def run_tile(self, tile: Tile) -> list[Sampled]:
        drawing = [(end, span) for end, span in zip(ends_of(tile), tile.spans, strict=True) if span.samples]
        drawn = [row for end, span in drawing for row in range(end - len(span.drafts), end + 1)]
        recorded = [
            (end - span.count + position - span.start, span.sequence, position)
            for end, span in zip(ends_of(tile), tile.spans, strict=True)
            for position in unrecorded(span)
        ]
        rows = sorted({*drawn, *(row for row, _, _ in recorded)})
        hidden, places = self.forward(tile, rows), {row: place for place, row in enumerate(rows)}
        self.record_prompt_logprobs([(places[row], one, position) for row, one, position in recorded], hidden)
        sequences, drafts = [span.sequence for _, span in drawing], [span.drafts for _, span in drawing]
        picked = hidden if drawn == rows else hidden[[places[row] for row in drawn]]
        if not drawn:
            return []
        logits, highest = self.ranked(picked)
        return sample_rows(logits, sequences, drafts, highest, self.model.kernels)

    def record_prompt_logprobs(self, wanted: list[tuple[int, Sequence, int]], hidden: Tensor) -> None:
        """Record the logprobs of prompt tokens for sequences that asked for them. `wanted`: the row of `hidden` whose
        logits give them, and the token's position. Logits of at most HEAD_ROWS positions exist at a time."""
        for start in range(0, len(wanted), HEAD_ROWS):
            rows, sequences, positions = zip(*wanted[start : start + HEAD_ROWS], strict=True)
            token = self.tensor([one.prompt[position] for one, position in zip(sequences, positions, strict=True)])
            counts = [one.params.prompt_logprobs for one in sequences]
            logits = self.project(hidden[self.tensor(list(rows))])
            found = logprobs_of(logits, torch.arange(len(rows), device=self.device), token, counts)
            for sequence, logprobs in zip(sequences, found, strict=True):
                sequence.prompt_logprobs.append(logprobs)

    def forward(self, tile: Tile, rows: list[int]) -> Tensor:
        """Final hidden states of the given rows of the tile, float32 [len(rows), hidden_size]."""
        ids = [span.token(p) for span in tile.spans for p in range(span.start, span.start + span.count)]
        if self.model.kernels is not None:
            spans = [TileSpan(span.start, span.count, span.sequence.blocks) for span in tile.spans]
            return self.model.forward_fused(
                self.tensor(ids), KernelTile(self.storage.tensor, spans, self.model.dtype), rows
            )
        positions = [p for span in tile.spans for p in range(span.start, span.start + span.count)]
        padding = self.padded(tile) - len(ids)
        attend = self.attention(tile, positions)
        # Padding rows come last; their results are not used.
        whole = self.model.forward(self.tensor(ids + [0] * padding), self.tensor(positions + [0] * padding), attend)
        return whole[rows]

    def padded(self, tile: Tile) -> int:
        if tile.generated:
            return self.classes.pad_generated(tile.rows)
        return self.classes.pad_prompt(tile.rows)

    def project(self, hidden: Tensor) -> Tensor:
        """Logits of the given rows, in tiles of the head's class of row counts."""
        count = len(hidden)
        if count == 0:
            return hidden.new_zeros(0, self.model.config.vocab_size)
        if self.model.kernels is not None:
            return self.model.logits(hidden)
        parts = []
        for part in hidden.split(HEAD_ROWS):
            padding = self.classes.pad_head(len(part)) - len(part)
            parts.append(self.model.logits(torch.nn.functional.pad(part, (0, 0, 0, padding)))[: len(part)])
        return torch.cat(parts)

    def ranked(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits of the given rows, and the id of each row's highest one where the model returns it."""
        if self.model.kernels is not None:
            return self.model.ranked_logits(hidden)
        return self.project(hidden), None

    def attention(self, tile: Tile, positions: list[int]) -> PagedAttention:
        owners = [span.sequence.blocks for span in tile.spans for _ in range(span.count)]
        blocks = self.tensor([own[p // self.block_size] for own, p in zip(owners, positions, strict=True)])
        offsets = self.tensor([p % self.block_size for p in positions])
        if not tile.generated:
            return PromptAttention(self.storage.tensor, blocks, offsets, self.prompt_spans(tile))
        strips = max(positions) // KEY_STRIP + 1
        tables = torch.stack([self.table(own, strips, KEY_STRIP) for own in owners])
        return GeneratedAttention(self.storage.tensor, blocks, offsets, tables, self.tensor([p + 1 for p in positions]))

    def prompt_spans(self, tile: Tile) -> list[PromptSpan]:
        starts = [end - span.count + 1 for end, span in zip(ends_of(tile), tile.spans, strict=True)]
        return [self.prompt_span(row, span) for row, span in zip(starts, tile.spans, strict=True)]

    def prompt_span(self, row: int, span: Span) -> PromptSpan:
        chunks = (span.start + span.count - 1) // KEY_CHUNK + 1
        return PromptSpan(row, span.start, span.count, self.table(span.sequence.blocks, chunks, KEY_CHUNK))

    def table(self, blocks: list[int], chunks: int, width: int) -> Tensor:
        """Block numbers [chunks, blocks per chunk] for chunks of `width` positions, padded with block 0."""
        per_chunk = width // self.block_size
        used = blocks[: chunks * per_chunk]
        return self.tensor(used + [0] * (chunks * per_chunk - len(used))).view(chunks, per_chunk)

    def tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)


def torch_products(products: Iterable[Product]) -> list[Linear]:
    return [one for one in products if isinstance(one, Linear)]


def unrecorded(span: Span) -> range:
    """The prompt tokens whose logprobs the span's logits give and that are not yet recorded, by position.

    Each is recorded once, however often it is computed, in order from the first, which has none. A sequence whose first
    positions were not computed here records nothing.
    """
    recorded = span.sequence.prompt_logprobs
    if span.sequence.params.prompt_logprobs is None:
        return range(0)
    if span.start == 0 and not recorded:
        recorded.append(None)
    if len(recorded) <= span.start:
        return range(0)
    return range(max(len(recorded), span.start + 1), min(span.start + span.count + 1, len(span.sequence.prompt)))


def ends_of(tile: Tile) -> list[int]:
    """The row of the last position of each span."""
    ends, row = [], -1
    for span in tile.spans:
        row += span.count
        ends.append(row)
    return ends
