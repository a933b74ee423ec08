# SPDX-License-Identifier: Apache-2.0
"""Measured times of steps, and the search for the highest rate that holds."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Outcome = TypeVar("Outcome")
# The search ends at so many times the rate at which it began, or at that part of it.
MOST, LEAST = 1000, 0.01


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Seconds of a step by its rows, as measured: `points` are pairs of both, of rising rows. Between two of them, and
    behind the last, seconds grow evenly."""

    points: tuple[tuple[int, float], ...]

    @classmethod
    def read(cls, text: str) -> "StepProfile":
        """Read ROWS=MILLISECONDS, with commas. Raises ValueError."""
        pairs = [(int(rows), float(taken) / 1e3) for rows, _, taken in (one.partition("=") for one in text.split(","))]
        if len(pairs) < 2 or pairs != sorted(pairs) or len(dict(pairs)) < len(pairs):
            raise ValueError("give at least two ROWS=MILLISECONDS, of rising rows")
        return cls(tuple(pairs))

    def seconds(self, prompt_rows: int, decode_rows: int) -> float:
        """Return the seconds of a step. What a step of few rows takes is not less than one of a single row."""
        rows = prompt_rows + decode_rows
        after = min(max(1, bisect_left(self.points, (rows, 0.0))), len(self.points) - 1)
        (few, less), (many, more) = self.points[after - 1 : after + 1]
        return max(self.points[0][1], less + (more - less) * (rows - few) / (many - few))


def highest_rate(
    trial: Callable[[float], Outcome], holds: Callable[[Outcome], bool], begin: float, step: float = 0.05
) -> tuple[float, Outcome]:
    """Return the highest rate, within this part of it, that holds, with the outcome there; 0, with that of the lowest
    one that was tried, if none does."""
    low, high, best = 0.0, begin, trial(begin)
    outcome = best
    while holds(outcome) and high < MOST * begin:
        low, best, high = high, outcome, 2 * high
        outcome = trial(high)
    while high - low > step * high and high > LEAST * begin:
        middle = (low + high) / 2
        outcome = trial(middle)
        if holds(outcome):
            low, best = middle, outcome
        else:
            high, best = middle, best if low else outcome
    return low, best
