# SPDX-License-Identifier: Apache-2.0
"""The interface by which the scheduler gets guesses of the next tokens, and guesses from repeated text alone."""

from collections import abc
from typing import Protocol

from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import Sequence

Draft = tuple[int, ...]


class Drafter(Protocol):
    """Guesses for the sequences that decode in a step. A guess only saves a step: it never changes a token."""

    def propose(self, sequences: abc.Sequence[Sequence], most: int, room: int) -> list[Draft]:
        """Return a draft for each sequence, oldest first: of at most `most` tokens, at most `room` together. Each fits
        its sequence's budget and grammar. Called once in each step that leaves rows for drafts, whose sequences' tokens
        are all known."""

    def computed(self, batch: Batch, seconds: float) -> None:
        """Take the time in which the step was computed whose drafts were the last ones proposed."""

    def verified(self, sequence: Sequence, guessed: int, right: int) -> None:
        """Take the outcome of a sequence's draft in that step: the first `right` guesses were right."""

    def hand_over(self, sequences: abc.Sequence[Sequence], most: int) -> list[Draft]:
        """Return a draft of at most `most` tokens for each of these sequences, which have ended here with their first
        tokens and go on elsewhere (B7). Nothing is kept for them."""

    def forget(self, sequence: Sequence) -> None:
        """Free what is kept for a sequence, which has ended."""


class LookupDrafter:
    """Guesses from repeated text, always as many as there may be."""

    def propose(self, sequences: abc.Sequence[Sequence], most: int, room: int) -> list[Draft]:
        drafts: list[Draft] = []
        for sequence in sequences:
            drafts.append(sequence.draft(min(most, room)))
            room -= len(drafts[-1])
        return drafts

    def computed(self, batch: Batch, seconds: float) -> None:
        return

    def verified(self, sequence: Sequence, guessed: int, right: int) -> None:
        return

    def hand_over(self, sequences: abc.Sequence[Sequence], most: int) -> list[Draft]:
        return [sequence.draft(most) for sequence in sequences]

    def forget(self, sequence: Sequence) -> None:
        return
