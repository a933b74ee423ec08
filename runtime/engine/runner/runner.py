# SPDX-License-Identifier: Apache-2.0
"""The engine's view of what computes its batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Protocol

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.foundation.value import value


def nothing() -> None:
    """Do nothing: no draws wait, and no states."""


@value(frozen=True, slots=True)
class Launched:
    """A batch that is being computed. `collect` waits for it and returns the sampled tokens of each sequence whose
    known tokens are all computed. `places` are those of the drawn ids among the results, of sequences that drew one:
    rows of the next batch may refer to them. Nothing was computed of those `left_out`, which end. `draw` starts draws
    that need the tokens of the batch before: it is called as soon as these are accepted, if there was one whose tokens
    were not when this was launched. Another batch may be launched before a `late` one was collected: what it computes
    is there for all that is started on the device from now on. Of a batch that computes the end of a prompt which is
    handed over, `mark` is the moment behind it on the device, where its blocks are as a peer may read them. `accepted`
    is called when the tokens of the batch were added to its sequences, before anything reads the KV of these or ends
    them."""

    collect: Callable[[], list[Sampled]]
    places: Mapping[Sequence, int] = field(default_factory=dict)
    left_out: frozenset[Sequence] = frozenset()
    draw: Callable[[], None] = nothing
    late: bool = False
    mark: Any = None
    accepted: Callable[[], None] = nothing


class Runner(Protocol):
    """Computes the batches of one pool. Where `keeps_states` is set, each sequence gets the final hidden states of its
    newest positions."""

    keeps_states: bool

    @property
    def answers_are_found(self) -> bool:
        """Return whether a prompt may find a finished answer's KV as it is: with the bits that it would have itself, or
        where these depend on the company of its rows in any case."""

    def launch(self, batch: Batch) -> Launched:
        """Begin to compute a batch, after those that were launched before."""

    def run(self, batch: Batch) -> list[Sampled]:
        """Compute a batch; return the sampled tokens of each sequence whose known tokens are all computed."""

    def beside(self, storage: KVStorage) -> Runner:
        """Return a runner of the same model, in this process alone, for another pool."""
