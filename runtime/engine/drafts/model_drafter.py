# SPDX-License-Identifier: Apache-2.0
"""Guesses by a draft model and from repeated text, as a policy decides."""

import time
from collections import abc
from collections.abc import Callable, Hashable
from typing import Protocol

from pontil.runtime.engine.drafts.drafter import Draft
from pontil.runtime.engine.drafts.model import DraftModel
from pontil.runtime.engine.drafts.policy import DraftPlan, Option, SharesRight
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import Sequence

# Temperatures up to which requests are of one kind: guesses are right as often.
KINDS = (0.0, 0.5, 1.0, 1.5)
# The most guesses of a draft layer that are made for a handoff, which waits for them.
HANDED_OVER = 4
# The kind of a draft that came with a handoff.
HANDED = "handed over"


class DraftPolicy(Protocol):
    """Decides what to guess, and is told of the results."""

    def plan(self, options: abc.Sequence[Option], room: int) -> DraftPlan:
        """Return a plan for these sequences with at most `room` guesses together."""

    def drafted(self, rows: int, seconds: float) -> None:
        """Take the time of a step of the draft model."""

    def stepped(self, sequences: int, rows: int, seconds: float | None, spent: float) -> None:
        """Take a step of the target: as in AdaptivePolicy."""

    def saved(self, tokens: int) -> None:
        """Take the number of right guesses of one sequence in that step."""


class ModelDrafter:
    """A Drafter that owns a draft model. Not thread-safe: the engine's thread owns it."""

    def __init__(
        self, model: DraftModel, policy: DraftPolicy, clock: Callable[[], float] = lambda: time.monotonic()
    ) -> None:
        self.model, self.policy, self.clock = model, policy, clock
        self.shares = SharesRight()
        # The source of each draft of the step that is being computed, and the seconds that the drafts took.
        self.made_by: dict[Sequence, Hashable] = {}
        self.spent = 0.0

    def propose(self, sequences: abc.Sequence[Sequence], most: int, room: int) -> list[Draft]:
        began = self.clock()
        self.made_by.clear()
        lookups = [sequence.guess(limit) if (limit := sequence.guessable(most)) else () for sequence in sequences]
        options = [self.option(sequence, most, guesses) for sequence, guesses in zip(sequences, lookups, strict=True)]
        plan = self.policy.plan(options, room)
        for sequence, count, window in zip(sequences, plan.reads, plan.windows, strict=True):
            if window:
                self.model.narrow(sequence, window)
            if count:
                self.model.read(sequence, count)
        model_counts = [(sequence, count) for sequence, count in zip(sequences, plan.models, strict=True) if count]
        model_drafts = dict(
            zip((sequence for sequence, _ in model_counts), self.model.propose(model_counts), strict=True)
        )
        drafts = [
            sequence.fitting(model_drafts.get(sequence, guesses[:lookup_count]))
            for sequence, guesses, lookup_count in zip(sequences, lookups, plan.lookups, strict=True)
        ]
        for sequence, draft in zip(sequences, drafts, strict=True):
            if draft:
                self.made_by[sequence] = model_kind(sequence) if sequence in model_drafts else lookup_kind(sequence)
        for rows, seconds in self.model.runs:
            self.policy.drafted(rows, seconds)
        self.model.runs.clear()
        self.spent = self.clock() - began
        return drafts

    def option(self, sequence: Sequence, most: int, found: Draft) -> Option:
        limit = sequence.guessable(most)
        return Option(
            limit,
            len(found),
            self.model.missing(sequence) if limit else None,
            sequence.params.max_tokens - len(sequence.output),
            self.shares.expected(sequence, lookup_kind(sequence)) if found else 0.0,
            self.shares.expected(sequence, model_kind(sequence)),
        )

    def computed(self, batch: Batch, seconds: float) -> None:
        decoding = [span for span in batch.spans if span.samples and span.sequence.output]
        rows = sum(span.count for span in decoding)
        alone = len(decoding) == len(batch.spans) and rows == sum(1 + len(span.drafts) for span in decoding)
        if decoding:
            self.policy.stepped(len(decoding), rows, seconds if alone else None, self.spent)

    def verified(self, sequence: Sequence, guessed: int, right: int) -> None:
        kind = self.made_by.get(sequence)
        if guessed and kind is not None:
            self.shares.add(sequence, kind, guessed, right)
            self.policy.saved(right)
        else:
            self.shares.age(sequence, model_kind(sequence))

    def hand_over(self, sequences: abc.Sequence[Sequence], most: int) -> list[Draft]:
        if not self.model.hands_over:
            return [sequence.draft(most) for sequence in sequences]
        proposals = self.model.propose(
            [(sequence, sequence.guessable(min(most, HANDED_OVER))) for sequence in sequences]
        )
        drafts = [
            sequence.fitting(guesses) or sequence.draft(most)
            for sequence, guesses in zip(sequences, proposals, strict=True)
        ]
        self.model.runs.clear()
        for sequence in sequences:
            self.model.forget(sequence)
        return drafts

    def forget(self, sequence: Sequence) -> None:
        self.model.forget(sequence)
        self.shares.forget(sequence)
        self.made_by.pop(sequence, None)


def lookup_kind(sequence: Sequence) -> Hashable:
    """Return the number of last tokens that were found again, or that the draft came with a handoff."""
    return HANDED if sequence.drafting.lookup is None else sequence.drafting.lookup.matching


def model_kind(sequence: Sequence) -> Hashable:
    temperature = 0.0 if sequence.params.greedy else sequence.params.temperature
    return ("model", sum(temperature > limit for limit in KINDS))
