# SPDX-License-Identifier: Apache-2.0
"""The draft model of a planned worker: the real one with its policy, KV memory and prefix cache, over a runner that
only lets pass the time that a step of it was measured to take."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.engine.drafts.drafter import Draft
from pontil.runtime.engine.drafts.model import DraftModel
from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.engine.drafts.policy import AdaptivePolicy, Option
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.planner.device_profile import DraftTimes
from pontil.runtime.planner.step_costs import fitted

# Every token of every answer, and every guess.
TOKEN = 100
# Rows of the first steps of a draft model, which a worker makes at its start.
FIRST_ROWS = (2, 1)


class PlannedDraftRunner:
    """Stands for the runner of a draft model of this shape. `spend` lets seconds pass."""

    def __init__(self, times: DraftTimes, spend: Callable[[float], object], shape: ModelConfig) -> None:
        self.curve, _ = fitted((rows, 0.0, ms / 1e3) for rows, ms in times.runs)
        self.spend, self.model = spend, SimpleNamespace(config=shape)

    def run(self, batch: Batch) -> list[Sampled]:
        self.spend(self.curve.at(sum(span.count for span in batch.spans)))
        sampling = [span for span in batch.spans if span.samples]
        return [Sampled(span.sequence, choice, [TOKEN], 1, []) for span in sampling for choice in span.sequence.choices]


class PlannedDrafter(ModelDrafter):
    """A drafter for answers whose text says nothing: all their tokens are alike, and none is found in what came before
    it."""

    def option(self, sequence: Sequence, most: int, found: Draft) -> Option:
        return super().option(sequence, most, ())


def planned_drafter(
    times: DraftTimes, spend: Callable[[float], object], pool: BlockPool, layout: KVLayout, shape: ModelConfig
) -> PlannedDrafter:
    """Return the drafter of a worker whose draft model has this pool, as `make_drafter` does around a loaded one
    (runtime/worker/start/draft_loading.py)."""
    runner: Any = PlannedDraftRunner(times, spend, shape)
    policy = AdaptivePolicy(times.ratio)
    for rows in FIRST_ROWS:
        policy.drafted(rows, runner.curve.at(rows))
    return PlannedDrafter(DraftModel(runner, pool, layout, shape.vocab_size), policy)
