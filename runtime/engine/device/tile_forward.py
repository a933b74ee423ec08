# SPDX-License-Identifier: Apache-2.0
"""The model's layers for a tile on a device: what the host writes for it, and what starts there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend, TileRuns
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.kv.device_tile import QUERY_TILE, DeviceTile
from pontil.gpu_ops.kv.states import HybridAttention, states_on
from pontil.gpu_ops.parameters.recurrent import StateTile
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.buckets import bucket_of, buckets, widths
from pontil.runtime.engine.device.captured_steps import CapturedSteps
from pontil.runtime.engine.device.link import DeviceLink
from pontil.runtime.engine.device.step_buffer import Array
from pontil.runtime.engine.device.tile_inputs import (
    adapter_sections,
    generated_sections,
    given_sections,
    query_tiles,
    row_sections,
    state_sections,
    table,
)
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.media_rows import MediaRows
from pontil.runtime.models.model import Model

NO_ROWS = TilePlan(True, [], [], [], [], [])
# The rows of a decode step, and the width of its tables.
Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The most generated rows and the most prompt rows of a tile, and the most blocks of a sequence: pages, where these
    are a part of a block."""

    generated: int
    prompt: int
    blocks: int

    @property
    def most_draws(self) -> int:
        """The most draws of a step, of which an id of each may be referred to in the next."""
        return 2 * (self.generated + self.prompt)

    @property
    def words(self) -> int:
        """Words of a step's inputs whose number is bounded."""
        rows = self.generated + self.prompt
        return rows * 36 + (self.generated + 1) * (self.blocks + 4)


def drawn_whole(plan: TilePlan) -> bool:
    """Return whether each row of a tile of generated positions draws, as in a decode step."""
    return plan.generated and len(plan.drawn) == len(plan.ids)


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Inputs and outputs of a tile's layers besides ids, on the device: the rows that enter instead of these,
    float32 [rows, hidden_size], with `media` about them, and the receiver of `states`."""

    entering: Tensor | None = None
    media: MediaRows | None = None
    states: HiddenStates | None = None


NOTHING_GIVEN = GivenRows()


class TileForward:
    """Computes tiles. Those of decode steps read and write only memory whose address stays, so that they can be
    recorded. `last` int32 [most draws] holds the ids of the step before: an id of -1 - place stands for one of
    them. With `takes_rows` no recorded step reads ids: its rows are in `entering` [most rows, hidden_size]."""

    takes_rows = False

    def __init__(
        self,
        model: Model,
        storage: KVStorage,
        link: DeviceLink,
        limits: DeviceLimits,
        last: Tensor,
        attention: AttentionBackend,
    ) -> None:
        self.model, self.storage, self.limits, self.last, self.attention = model, storage, limits, last, attention
        self.generated_rows, self.prompt_rows = buckets(limits.generated), buckets(limits.prompt)
        # A prompt begins one query tile for each that it fills, and at most two more; each has a position.
        self.query_tiles = buckets(min(limits.prompt, limits.prompt // QUERY_TILE + 2 * limits.generated))
        self.places = buckets(max(limits.generated, limits.prompt))
        self.widths = widths(limits.blocks)
        self.captured = CapturedSteps(link)
        model.communicator.drop_at_close(self.captured)
        self.tables = torch.zeros(limits.generated, self.widths[-1], dtype=torch.int32, device=link.device)
        rows = limits.generated if self.takes_rows else 0
        self.entering = torch.zeros(rows, model.config.hidden_size, device=link.device)

    def rows(self, plan: TilePlan) -> int:
        return bucket_of(len(plan.ids), self.generated_rows if plan.generated else self.prompt_rows)

    def width(self, plan: TilePlan) -> int:
        """The width of the tables of a tile of generated positions."""
        block_size = self.storage.layout.page_size
        longest = max((-(-(span.start + span.count) // block_size) for span in plan.spans), default=1)
        return bucket_of(longest, self.widths)

    def fixed_sections(self, plan: TilePlan) -> list[Array]:
        """Sections whose sizes follow from the number of rows alone."""
        return self.sections_of(plan, self.rows(plan))

    def sections_of(self, plan: TilePlan, rows: int) -> list[Array]:
        """Those of rows, then of adapters and of states, where the model has such."""
        layout, most = self.storage.layout, self.limits.generated
        make = generated_sections if plan.generated else row_sections
        made = make(plan, rows, layout)
        if self.model.adapters.products:
            made += adapter_sections(plan, rows, most)
        if layout.has_states:
            made += state_sections(plan.spans, rows, most, layout.block_size)
        return made

    def free_sections(self, plan: TilePlan) -> list[Array]:
        """Sections of other sizes: tables; of prompts the query tiles; the wanted rows, unless all are wanted."""
        sections = [table(plan.spans, self.storage.layout)]
        if not plan.generated:
            sections.append(query_tiles(plan, self.query_tiles))
        if not drawn_whole(plan):
            sections.append(padded(plan.rows, self.places))
        return sections

    def given_sections(self, plan: TilePlan) -> list[Array]:
        """Sections of rows that are no ids."""
        return given_sections(plan, self.rows(plan))

    def given(
        self, plan: TilePlan, ids: Tensor, sections: Sequence[Tensor], states: HiddenStates | None = None
    ) -> GivenRows:
        """Return the rows that the tile has besides ids, and the receiver of `states`; `sections` are the given ones on
        the device."""
        if not sections:
            return NOTHING_GIVEN if states is None else GivenRows(states=states)
        entering, *rest = sections
        return GivenRows(entering, MediaRows((rest[0], rest[1]), rest[2]) if rest else None, states)

    def hidden(
        self, plan: TilePlan, fixed: Sequence[Tensor], free: Sequence[Tensor], leads: bool, given: GivenRows
    ) -> Tensor:
        """Final hidden states float32 of the tile's rows if it is `drawn_whole`, else of the plan's rows; behind them
        are those of padding. Only a tile that `leads` a step has its sections where a recorded step reads them."""
        self.attention.plan(self.storage.tensor, partial(self.runs, plan))
        if not plan.generated:
            ids, positions, slots, *more = fixed
            tile = DeviceTile(slots, positions, free[0], query_tiles=free[1])
            return self.forward(ids, tile, more, given).index_select(0, free[2])
        self.tables[: free[0].shape[0], : free[0].shape[1]].copy_(free[0])
        width = self.width(plan)
        hidden = self.recorded(fixed, width, given) if leads else self.decode(fixed, width, given)
        return hidden if drawn_whole(plan) else hidden.index_select(0, free[1])

    def recorded(self, fixed: Sequence[Tensor], width: int, given: GivenRows) -> Tensor:
        """The layers for rows of generated positions, by a recorded step if there is one for what is given."""
        if not self.is_recorded(given):
            return self.decode(fixed, width, given)
        if given.entering is not None:
            self.entering[: len(given.entering)].copy_(given.entering)
        return self.captured.run((len(fixed[0]), width), partial(self.decode, fixed, width))

    def is_recorded(self, given: GivenRows) -> bool:
        """Return whether recorded steps take all that is given, and give all that is wanted."""
        is_usual = (given.entering is not None) == self.takes_rows
        return is_usual and given.media is None and given.states is None

    def runs(self, plan: TilePlan) -> TileRuns:
        return runs_of(plan, self.rows(plan), self.width(plan))

    @property
    def shapes(self) -> list[Shape]:
        """The rows and the widths of tables of all decode steps, the largest first: later ones fit into its memory."""
        return [(rows, width) for rows in reversed(self.generated_rows) for width in reversed(self.widths)]

    def record(self, shapes: Sequence[Shape], send: Callable[[Sequence[Array]], list[Tensor]]) -> None:
        """Record decode steps of some shapes. `send` puts sections where those of a step's first tile are."""
        for rows, width in shapes:
            fixed_sections = send(self.sections_of(NO_ROWS, rows))
            empty = runs_of(NO_ROWS, rows, width)
            self.attention.plan(self.storage.tensor, lambda runs=empty: runs)  # type: ignore[misc]
            self.captured.record((rows, width), partial(self.decode, fixed_sections, width))

    def decode(self, fixed: Sequence[Tensor], width: int, given: GivenRows = NOTHING_GIVEN) -> Tensor:
        """The layers for rows of generated positions, whose tables have been written."""
        ids, positions, slots, owners, lengths, *more = fixed
        # Only rank 0 has drawn them.
        self.model.communicator.broadcast(self.last)
        tile = DeviceTile(slots, positions, self.tables[: len(ids), :width], owners, lengths)
        if self.takes_rows and given.entering is None:
            given = replace(given, entering=self.entering[: len(ids)])
        if given.entering is None:
            ids = torch.where(ids < 0, self.last.index_select(0, (-1 - ids).clamp_(min=0)), ids)
        return self.forward(ids, tile, more, given)

    def forward(self, ids: Tensor, tile: DeviceTile, more: Sequence[Tensor], given: GivenRows) -> Tensor:
        """The layers. `more` are the sections of adapters and of states."""
        inputs = ids if given.entering is None else given.entering
        attention: PagedAttention = self.attention.attention(self.storage.tensor, tile)
        if self.model.adapters.products:
            order, tiles, *more = more
            self.model.adapters.rows.place(order, tiles)
        if self.storage.states is not None:
            spans, rows = more
            own = StateTile(spans, rows, self.storage.layout.block_size)
            attention = HybridAttention(attention, states_on(self.storage.states, own))
        return self.model.forward(inputs, tile.positions, attention, given.states, given.media)


def runs_of(plan: TilePlan, rows: int, width: int) -> TileRuns:
    """The runs of a tile of so many rows, and tables of so many blocks."""
    if plan.generated:
        ends = np.zeros(rows, np.int32)
        ends[: len(plan.ids)] = np.array(plan.positions, np.int32) + 1
        return TileRuns(True, rows, width, np.ones(rows, np.int32), ends)
    counts = np.array([span.count for span in plan.spans], np.int32)
    starts = np.array([span.start for span in plan.spans], np.int32)
    return TileRuns(False, rows, width, counts, starts + counts)


def padded(places: Sequence[int], sizes: tuple[int, ...]) -> Array:
    """Places as int64, padded with the first row."""
    padded_places = np.zeros(bucket_of(len(places), sizes), np.int64)
    padded_places[: len(places)] = places
    return padded_places
