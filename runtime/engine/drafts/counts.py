# SPDX-License-Identifier: Apache-2.0
"""Counts of drafts: how many were verified, and how many were right at each position."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class DraftCounts:
    """`drafts` is the number of drafts, of one or more guesses each, that steps verified; `guessed` and `right` count
    their guesses, `right_at` those that were right by their place in the draft."""

    drafts: int = 0
    guessed: int = 0
    right: int = 0
    right_at: list[int] = field(default_factory=list)

    def add(self, guessed: int, right: int) -> None:
        """Count one draft. The right guesses are its first ones."""
        if guessed:
            self.drafts += 1
            self.guessed += guessed
            self.right += right
            self.right_at += [0] * (right - len(self.right_at))
            for place in range(right):
                self.right_at[place] += 1
