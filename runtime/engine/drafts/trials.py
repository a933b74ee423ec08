# SPDX-License-Identifier: Apache-2.0
"""Trials of a draft model that is not expected to help: a few guesses in a row from time to time, so that one that has
become better is noticed. Each trial that fails doubles the pause before the next, one that succeeds halves it."""

from dataclasses import dataclass

# The wrong guesses that end a trial.
TRIES = 4
# The shortest and the longest pause, in steps.
FIRST_PAUSE, MOST_PAUSE = 128, 1024


@dataclass(slots=True)
class Trials:
    """Trials and pauses. No trial begins in the next `rest` steps; the one that goes on has `left` guesses, None if
    none does."""

    pause: int = FIRST_PAUSE
    rest: int = 0
    left: int | None = None

    def goes_on(self, can_begin: bool, can_go_on: bool) -> bool:
        """Return whether a trial goes on, or begins now. It fails if it has no guess left, or cannot be paid."""
        if self.left is None and not self.rest and can_begin:
            self.left = TRIES
        if self.left is not None and not (self.left and can_go_on):
            self.left, self.rest, self.pause = None, self.pause, min(2 * self.pause, MOST_PAUSE)
        return self.left is not None

    def guess(self) -> None:
        if self.left:
            self.left -= 1

    def right(self) -> None:
        """Take a guess that was right: the trial may have another."""
        if self.left is not None:
            self.left = min(self.left + 1, TRIES)

    def succeed(self) -> None:
        """Take that guesses are expected to help."""
        if self.left is not None:
            self.left, self.pause = None, max(self.pause // 2, FIRST_PAUSE)

    def step(self) -> None:
        self.rest = max(0, self.rest - 1)
