# SPDX-License-Identifier: Apache-2.0
"""Computes tiles: the model and the KV memory that it writes. Every rank of a worker has one, and all run the same
tiles in the same order."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.linear import Product
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan, adapters_of_rows
from pontil.gpu_ops.kv.attention import (
    KEY_CHUNK,
    KEY_STRIP,
    GeneratedAttention,
    PagedAttention,
    PromptAttention,
    PromptSpan,
)
from pontil.gpu_ops.kv.states import HybridAttention, StateSpan, TileStates
from pontil.gpu_ops.parameters.draws import RankedRows
from pontil.gpu_ops.products.batch_invariance import ANY_ROWS, BatchInvariance, measure, same_on_one_thread
from pontil.gpu_ops.products.linear import Linear
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.model import Model

logger = logging.getLogger("pontil.engine")

# Rows of logits that are computed together.
HEAD_ROWS = 32


class TileRunner:
    """The owner of the model and of its KV memory. It knows no sequences."""

    def __init__(self, model: Model, storage: KVStorage, classes: BatchInvariance | None = None) -> None:
        """`classes` are measured on a CPU, unless they are given. A device's products are batch-invariant or are not
        by `--deterministic`, for any number of rows; the ranks of a worker must pad alike."""
        assert storage.layout.packed == (model.kernels is not None), "the blocks are another's"
        self.model, self.storage = model, storage
        self.device = model.device
        self.block_size = storage.layout.page_size
        # Memory of the kernels for rows that verify guesses, and how to take those of the last tile with such.
        self.kept = torch.empty(0, 0)
        self.take_guesses: Callable[[Sequence[int]], None] | None = None
        if classes is not None or model.kernels is not None or self.device.type != "cpu":
            self.classes: BatchInvariance = classes or ANY_ROWS
            return
        if torch.get_num_threads() > 1:
            self.agree_with_fewer_cores()
        self.classes = measure(torch_products(model.linears), torch_products(model.head))

    @property
    def keeps_bits(self) -> bool:
        """Return whether the KV of a row has the same bits in any company (C16). On a device it has not where a library
        chooses a product's form by the number of rows."""
        products = torch_products(self.model.linears)
        return self.device.type == "cpu" or all(one.has_invariant_rows for one in products)

    def agree_with_fewer_cores(self) -> None:
        """Use one thread if results depend on the number of threads: tokens must not depend on how many cores a worker
        was given (C16)."""
        if not same_on_one_thread(torch_products(self.model.linears), torch_products(self.model.head)):
            logger.warning("this library's results depend on the number of threads: computing with one")
            torch.set_num_threads(1)

    @torch.inference_mode()
    def follow(self, plan: TilePlan) -> None:
        """Compute a tile without using its logits: as a rank whose driver does."""
        hidden = self.forward(plan)
        for _ in self.prompt_logits(plan, hidden):
            pass
        if plan.drawn:
            self.drawn_logits(plan, hidden)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each, before the next tile."""
        self.storage.copy(list(pairs))

    @torch.inference_mode()
    def take_accepted(self, counts: Sequence[int]) -> None:
        """Take the first so many positions of each span of the last tile that verified guesses into the
        states."""
        take, self.take_guesses = self.take_guesses, None
        if take is not None:
            take(counts)

    def forward(self, plan: TilePlan, states: HiddenStates | None = None) -> Tensor:
        """Final hidden states of the plan's rows, float32 [len(plan.rows), hidden_size]. `states` receives those of all
        the tile's rows."""
        media = plan.media
        if self.model.kernels is not None:
            angles, deep = (None, None) if media is None else (media.angles, media.deep)
            own, spans = self.states(plan), self.paged(plan.spans)
            tile = KernelTile(self.storage.tensor, spans, self.model.dtype, angles, own)
            if own is not None and own.verifies:
                self.take_guesses = lambda counts: self.model.take_kept(tile.accepted(counts))
            return self.model.forward_fused(self.inputs(plan, 0), tile, plan.rows, states, deep)
        positions = plan.positions
        self.model.adapters.rows.choose(adapters_of_rows(plan.spans))
        padding = self.padded(plan) - len(positions)
        attend, inputs = self.attention(plan, positions), self.inputs(plan, padding)
        if media is not None:
            media = media.to(self.device).padded(padding)
        # Padding rows come last; their results are not used.
        whole = self.model.forward(inputs, self.tensor(positions + [0] * padding), attend, states, media)
        return whole[list(plan.rows)]

    def inputs(self, plan: TilePlan, padding: int) -> Tensor:
        """Token ids int64 [rows], or embeddings float32 [rows, hidden_size], followed by rows of zeros."""
        if plan.embeddings is None:
            return self.tensor([*plan.ids, *([0] * padding)])
        return torch.nn.functional.pad(plan.embeddings.to(self.device), (0, 0, 0, padding))

    def prompt_logits(self, plan: TilePlan, hidden: Tensor) -> Iterator[Tensor]:
        """Yield the logits of the recorded rows, in order, at most HEAD_ROWS at a time."""
        for start in range(0, len(plan.recorded), HEAD_ROWS):
            yield self.project(hidden[self.tensor(plan.recorded[start : start + HEAD_ROWS])])

    def drawn_logits(self, plan: TilePlan, hidden: Tensor) -> tuple[Tensor, RankedRows | None]:
        """Logits of the drawn rows, and which of them are the highest where the model returns it."""
        drawn_hidden = hidden if len(plan.drawn) == len(plan.rows) else hidden[self.tensor(plan.drawn)]
        if self.model.kernels is not None:
            return self.model.ranked_logits(drawn_hidden)
        return self.project(drawn_hidden), None

    def padded(self, plan: TilePlan) -> int:
        if plan.generated:
            return self.classes.pad_generated(len(plan.ids))
        return self.classes.pad_prompt(len(plan.ids))

    def project(self, hidden: Tensor) -> Tensor:
        """Logits of the given rows, in tiles of the head's class of row counts."""
        if self.model.kernels is not None:
            return self.model.logits(hidden)
        parts = []
        for part in hidden.split(HEAD_ROWS):
            padding = self.classes.pad_head(len(part)) - len(part)
            parts.append(self.model.logits(torch.nn.functional.pad(part, (0, 0, 0, padding)))[: len(part)])
        return torch.cat(parts)

    def paged(self, spans: Sequence[TileSpan]) -> Sequence[TileSpan]:
        """The spans with the numbers of their pages in the place of those of their blocks."""
        if self.storage.states is None:
            return spans
        layout = self.storage.layout
        return [replace(span, blocks=layout.pages_of(span.blocks, span.start + span.count)) for span in spans]

    def attention(self, plan: TilePlan, positions: list[int]) -> PagedAttention:
        attend = self.heads_attention(plan.generated, self.paged(plan.spans), positions)
        states = self.states(plan)
        if states is not None and states.verifies:
            self.take_guesses = states.take
        return attend if states is None else HybridAttention(attend, states)

    def states(self, plan: TilePlan) -> TileStates | None:
        """The states of the plan's sequences, if the model's layers have such."""
        if self.storage.states is None:
            return None
        spans = [StateSpan(span.start, span.count, span.blocks, span.drafts > 0) for span in plan.spans]
        rows = sum(span.count for span in spans if span.verifies)
        kept = self.kept_rows(rows) if rows and self.model.kernels is not None else None
        return TileStates(self.storage.states, self.storage.layout.block_size, spans, kept)

    def kept_rows(self, count: int) -> Tensor:
        """Memory for so many rows of all recurrent layers of this rank, float32 [rows, number]."""
        recurrent = self.model.config.recurrent
        assert recurrent is not None
        if len(self.kept) < count:
            own = recurrent.divided(self.storage.layout.ranks)
            self.kept = torch.empty(count, len(recurrent.layers) * own.made_numbers)
        return self.kept

    def heads_attention(self, generated: bool, spans: Sequence[TileSpan], positions: list[int]) -> PagedAttention:
        owners = [span.blocks for span in spans for _ in range(span.count)]
        blocks = self.tensor([owner[p // self.block_size] for owner, p in zip(owners, positions, strict=True)])
        offsets = self.tensor([p % self.block_size for p in positions])
        if not generated:
            return PromptAttention(self.storage.tensor, blocks, offsets, self.prompt_spans(spans))
        strips = max(positions) // KEY_STRIP + 1
        tables = torch.stack([self.table(owner, strips, KEY_STRIP) for owner in owners])
        return GeneratedAttention(self.storage.tensor, blocks, offsets, tables, self.tensor([p + 1 for p in positions]))

    def prompt_spans(self, spans: Sequence[TileSpan]) -> list[PromptSpan]:
        prompts: list[PromptSpan] = []
        row = 0
        for span in spans:
            prompts.append(self.prompt_span(row, span))
            row += span.count
        return prompts

    def prompt_span(self, row: int, span: TileSpan) -> PromptSpan:
        chunks = (span.start + span.count - 1) // KEY_CHUNK + 1
        return PromptSpan(row, span.start, span.count, self.table(span.blocks, chunks, KEY_CHUNK))

    def table(self, blocks: Sequence[int], chunks: int, width: int) -> Tensor:
        """Block numbers [chunks, blocks per chunk] for chunks of `width` positions, padded with block 0."""
        per_chunk = width // self.block_size
        used_blocks = list(blocks[: chunks * per_chunk])
        return self.tensor(used_blocks + [0] * (chunks * per_chunk - len(used_blocks))).view(chunks, per_chunk)

    def tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)


def torch_products(products: Iterable[Product]) -> list[Linear]:
    return [product for product in products if isinstance(product, Linear)]
