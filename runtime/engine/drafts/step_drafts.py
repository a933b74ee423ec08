# SPDX-License-Identifier: Apache-2.0
"""The drafts that an engine's steps verify."""

from pontil.gpu_ops.products.batch_invariance import GENERATED_ROWS
from pontil.runtime.engine.drafts.drafter import Drafter, LookupDrafter
from pontil.runtime.engine.prefixes.kv_cache_manager import KVCacheManager
from pontil.runtime.engine.sequences.batch import Span


class StepDrafts:
    """At most `most` guesses for each sequence, by the `drafter`. Of the last step: `has_room` says whether rows were
    left for drafts, and `asked` whether the drafter was asked for them."""

    def __init__(self, most: int = 0, drafter: Drafter | None = None) -> None:
        self.most = most
        self.drafter: Drafter = drafter or LookupDrafter()
        self.has_room = self.asked = False

    def add(self, spans: list[Span], memory: KVCacheManager) -> list[Span]:
        """Return the spans with drafts. Oldest first, sequences verify their guesses in the rows that the first tile
        has left. Slots for all of them are reserved before anything is written (C10), from blocks that no other
        sequence needs in this step. No drafter runs without a row left, or before the tokens that it starts from are
        known."""
        room = GENERATED_ROWS - len(spans)
        self.has_room = self.most > 0 and room > 0
        self.asked = self.has_room and not any(span.sequence.ahead.count for span in spans)
        if not self.asked:
            return spans
        drafts = self.drafter.propose([span.sequence for span in spans], self.most, room)
        for place, (span, draft) in enumerate(zip(spans, drafts, strict=True)):
            count = 1 + len(draft)
            if draft and memory.grow(span.sequence, span.start + count):
                spans[place] = Span(span.sequence, span.start, count, draft)
        return spans
