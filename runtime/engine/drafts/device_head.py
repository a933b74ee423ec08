# SPDX-License-Identifier: Apache-2.0
"""A draft layer on a device, whose steps wait for nothing but their own tokens."""

from collections.abc import Sequence as Sequential
from dataclasses import replace

import torch
from torch import Tensor

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner, Round
from pontil.runtime.engine.device.device_step import DeviceStep
from pontil.runtime.engine.device.link import DeviceLink
from pontil.runtime.engine.device.step_buffer import Array
from pontil.runtime.engine.device.tile_forward import DeviceLimits, GivenRows, TileForward
from pontil.runtime.engine.device.tile_inputs import padded_rows
from pontil.runtime.engine.drafts.state_feed import Feeds, states_of, with_own
from pontil.runtime.engine.runner.runner import Launched
from pontil.runtime.engine.sequences.batch import Batch, Span, Tile
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.rows import TileRows
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.layers.draft_layer import DraftLayer


class JoinedForward(TileForward):
    """Computes tiles of a draft layer. The embeddings of a plan are states, which are on the device already; its rows
    are joined before a recorded step, which reads them."""

    takes_rows = True

    def given_sections(self, plan: TilePlan) -> list[Array]:
        return []

    def given(
        self, plan: TilePlan, ids: Tensor, sections: Sequential[Tensor], states: HiddenStates | None = None
    ) -> GivenRows:
        assert plan.embeddings is not None and isinstance(self.model, DraftLayer)
        return GivenRows(self.model.rows(ids, padded_rows(plan.embeddings, len(ids))), states=states)


class DeviceLayerRunner(DeviceRunner):
    """Runs a draft layer on the states that `feeds` has for each twin."""

    forward_type = JoinedForward

    def __init__(
        self, layer: DraftLayer, storage: KVStorage, link: DeviceLink, limits: DeviceLimits, attention: AttentionBackend
    ) -> None:
        super().__init__(layer, storage, link, limits, attention)
        self.feeds: Feeds = {}
        self.computed: list[tuple[Span, Tensor | None]] = []

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Launched:
        launched = super().launch(batch)
        # An attempt for which memory did not suffice has changed nothing that the next one read.
        for span, own in self.computed:
            self.feeds[span.sequence].computed(span, own)
        return launched

    def start(self, batch: Batch, rounds: list[Round]) -> DeviceStep:
        self.computed = []
        return super().start(batch, rounds)

    def rows(self, tile: Tile) -> TileRows:
        rows = super().rows(tile)
        return replace(rows, plan=replace(rows.plan, embeddings=states_of(self.feeds, tile.spans), media=None))

    def keep(self, rows: TileRows, hidden: Tensor) -> None:
        assert isinstance(self.model, DraftLayer)
        fed = self.model.fed(hidden)
        self.computed += with_own(rows.spans, iter([fed[place].clone() for place in rows.plan.drawn]))
