# SPDX-License-Identifier: Apache-2.0
"""A draft model that is one layer over the target's hidden states: DeepSeek V3's MTP layer, or an EAGLE head.

A position of its twin has the token after that position, and the target's state of it. Where the target has no state
yet, at guesses after the first, the layer's own result takes its place. The twin begins at the first position whose
state is known: states of prompts that came from the prefix cache or from another worker are not.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from pontil.gpu_ops.products.batch_invariance import ANY_ROWS
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.drafts.device_head import DeviceLayerRunner
from pontil.runtime.engine.drafts.model import DraftModel, Followed, twin_of
from pontil.runtime.engine.drafts.policy import WINDOW
from pontil.runtime.engine.drafts.state_feed import Feeds, StateFeed, states_of, with_own
from pontil.runtime.engine.prefixes.cache import PrefixHit
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.sequences.batch import Tile
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.layers.draft_layer import DraftLayer


class DraftLayerRunner(ModelRunner):
    """Runs a draft layer on the states that `feeds` has for each twin. Not batch-invariant: these are guesses."""

    def __init__(self, layer: DraftLayer, storage: KVStorage) -> None:
        super().__init__(layer, storage, classes=ANY_ROWS)
        self.layer = layer
        self.feeds: Feeds = {}

    def forward(self, tile: Tile, plan: TilePlan, states: HiddenStates | None) -> Tensor:
        entering = self.layer.rows(self.tiles.tensor(plan.ids), states_of(self.feeds, tile.spans))
        hidden = self.tiles.forward(replace(plan, embeddings=entering, media=None), states)
        for span, own in with_own(tile.spans, iter(self.layer.fed(hidden))):
            self.feeds[span.sequence].computed(span, own)
        return hidden


class DraftHead(DraftModel):
    """Guesses from hidden states, one after the other: each starts from the state that the one before gave."""

    hands_over = True

    def __init__(
        self,
        runner: DraftLayerRunner | DeviceLayerRunner,
        pool: BlockPool,
        layout: KVLayout,
        vocab_size: int,
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        # A block's KV depends on the states before it, which nothing names.
        super().__init__(runner, pool, layout, vocab_size, False, clock)
        self.feeds = runner.feeds

    def follow(self, sequence: Sequence) -> Sequence | None:
        states, last = sequence.drafting.target_states, sequence.length - 1
        if states is not None:
            states.cut(last)
        if states is None or not states.rows or states.end < last:
            self.forget(sequence)
            return None
        twin = super().follow(sequence)
        if twin is not None and self.feeds[twin].base + twin.computed < states.start:
            # Tokens came without guesses for long.
            self.forget(sequence)
            twin = super().follow(sequence)
        return twin

    def begin(self, sequence: Sequence, window: int) -> tuple[Sequence, PrefixHit]:
        assert sequence.drafting.target_states is not None
        twin = twin_of(sequence, max(sequence.drafting.target_states.start + 1, sequence.length - window))
        return twin, self.prefix.find(twin)

    def agree(self, sequence: Sequence, follower: Followed) -> None:
        super().agree(sequence, follower)
        twin, feed = follower.twin, self.feeds[follower.twin]
        if sequence.drafting.target_states is not None:
            feed.states = sequence.drafting.target_states
        feed.certain = min(twin.computed, feed.certain)
        twin.count_from(feed.certain)

    def start(self, sequence: Sequence, window: int = WINDOW) -> Followed | None:
        follower = super().start(sequence, window)
        if follower is not None and sequence.drafting.target_states is not None:
            self.feeds[follower.twin] = StateFeed(sequence.drafting.target_states, follower.twin.drafting.skipped - 1)
        return follower

    def forget(self, sequence: Sequence) -> None:
        follower = self.followers.get(sequence)
        super().forget(sequence)
        if follower is not None:
            del self.feeds[follower.twin]
