# SPDX-License-Identifier: Apache-2.0
"""The states that a draft layer's rows enter with, and what it gives in their place."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.runtime.engine.sequences.batch import Span
from pontil.runtime.engine.sequences.draft_state import TargetStates
from pontil.runtime.engine.sequences.sequence import Sequence


@dataclass(slots=True)
class StateFeed:
    """The states for a twin, whose first position is the target's position `base`. The first `certain` positions in
    its KV were computed from the target's states. `own` is the layer's last result."""

    states: TargetStates
    base: int
    certain: int = 0
    own: Tensor | None = None

    def at(self, place: int) -> Tensor:
        position = self.base + place
        if position < self.states.end:
            return self.states.at(position)
        assert self.own is not None
        return self.own

    def computed(self, span: Span, own: Tensor | None) -> None:
        """Note that a span was computed, which drew from the layer's result `own`, if it drew."""
        self.certain = max(self.certain, min(span.start + span.count, self.states.end - self.base))
        if own is not None:
            self.own = own


Feeds = dict[Sequence, StateFeed]


def states_of(feeds: Mapping[Sequence, StateFeed], spans: Iterable[Span]) -> Tensor:
    """Return the states of all positions of these spans, float32 [rows, hidden_size]."""
    places = ((feeds[span.sequence], place) for span in spans for place in range(span.start, span.start + span.count))
    return torch.stack([feed.at(place) for feed, place in places])


def with_own(spans: Iterable[Span], drawn: Iterator[Tensor]) -> Iterator[tuple[Span, Tensor | None]]:
    """Yield spans with the layer's result that each drew from."""
    for span in spans:
        yield span, next(drawn) if span.samples else None
