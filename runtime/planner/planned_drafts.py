# SPDX-License-Identifier: Apache-2.0
"""The draft model of a planned worker: the real one with its policy, KV memory and prefix cache, over a runner that
only lets pass the time that a step of it was measured to take."""

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Sequential
from types import SimpleNamespace
from typing import Any

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.engine.drafts.costs import FORGET_RATE, Rate
from pontil.runtime.engine.drafts.drafter import Draft
from pontil.runtime.engine.drafts.model import DraftModel
from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.engine.drafts.policy import AdaptivePolicy, Option, SharesRight
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.planner.device_profile import DraftTimes
from pontil.runtime.planner.step_costs import fitted
from pontil.runtime.worker.start.draft_loading import FIRST_READ

# Every token of every answer, and every guess.
TOKEN = 100
# Rows of the first steps of a draft model, which a worker makes at its start, and the last ones of which draw.
FIRST_ROWS = (FIRST_READ, 1)
# The weight of all guesses that a worker remembers behind which it has made many.
REMEMBERED = 1.0 / (1.0 - FORGET_RATE)


class DraftCosts:
    """The seconds of a draft model's steps. Rows that draw a guess take what those of as many sequences were measured
    to take, by the positions before them. Other rows take what they add to a text that is read: nothing is drawn from
    them."""

    def __init__(self, times: DraftTimes) -> None:
        self.guesses, self.read = fitted((rows, before, ms / 1e3) for rows, before, ms in times.guesses)
        self.texts, _ = fitted((rows, 0.0, ms / 1e3) for rows, ms in times.reads)

    def step(self, rows: int, drawing: int, before: int) -> float:
        """Return the seconds of a step of so many rows, of which some draw, behind so many positions."""
        seconds = self.read * before
        if drawing:
            seconds += self.guesses.at(drawing)
        if rows > drawing:
            seconds += self.texts.at(rows) - (self.texts.at(drawing) if drawing else 0.0)
        return seconds


class PlannedDraftRunner:
    """Stands for the runner of a draft model of this shape. `spend` lets seconds pass."""

    def __init__(self, costs: DraftCosts, spend: Callable[[float], object], shape: ModelConfig) -> None:
        self.costs, self.spend, self.model = costs, spend, SimpleNamespace(config=shape)

    def run(self, batch: Batch) -> list[Sampled]:
        sampling = [span for span in batch.spans if span.samples]
        rows, before = sum(span.count for span in batch.spans), sum(span.start for span in batch.spans)
        self.spend(self.costs.step(rows, len(sampling), before))
        return [Sampled(span.sequence, choice, [TOKEN], 1, []) for span in sampling for choice in span.sequence.choices]


class KnownShares(SharesRight):
    """The shares of a worker that has guessed for long, of which this one was right."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def of_all(self, kind: Hashable) -> Rate:
        return self.all.setdefault(kind, Rate(self.share, REMEMBERED))


class PlannedDrafter(ModelDrafter):
    """A drafter for answers whose text says nothing: all their tokens are alike, and none is found in what came before
    it."""

    def option(self, sequence: Sequence, most: int, found: Draft) -> Option:
        return super().option(sequence, most, ())


def planned_drafter(
    times: DraftTimes,
    accepted: float,
    steps: Sequential[float],
    spend: Callable[[float], object],
    pool: BlockPool,
    layout: KVLayout,
    shape: ModelConfig,
) -> PlannedDrafter:
    """Return the drafter of a worker whose draft model has this pool, as `make_drafter` does around a loaded one
    (runtime/worker/start/draft_loading.py). It has guessed for long, of which the share `accepted` was right, and knows
    the seconds of the model's `steps` by their rows, from one on: what a launch does all day is not what its first
    requests see."""
    costs = DraftCosts(times)
    runner: Any = PlannedDraftRunner(costs, spend, shape)
    policy = AdaptivePolicy(times.ratio)
    for rows in FIRST_ROWS:
        policy.drafted(rows, costs.step(rows, 1, 0))
    for rows, seconds in enumerate(steps, 1):
        policy.target.add(rows, seconds)
    drafter = PlannedDrafter(DraftModel(runner, pool, layout, shape.vocab_size), policy)
    drafter.shares = KnownShares(accepted)
    return drafter
