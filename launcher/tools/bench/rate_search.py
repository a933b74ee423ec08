# SPDX-License-Identifier: Apache-2.0
"""The search for the highest request rate at which enough requests keep their limits."""

from collections.abc import Callable

# The search ends when the highest good rate and the lowest bad one are so close, and after so many trials.
CLOSE = 1.1
MOST_TRIALS = 16


def highest_rate(start: float, kept: Callable[[float], bool]) -> float | None:
    """Return the highest rate, within a tenth, at which `kept` says yes; None if it never does. The first trials double
    or halve the rate; those after them halve the distance, on a scale of ratios."""
    good: float | None = None
    bad: float | None = None
    rate = start
    for _ in range(MOST_TRIALS):
        if kept(rate):
            good = rate
        else:
            bad = rate
        if good is not None and bad is not None and bad / good <= CLOSE:
            break
        if good is None:
            rate /= 2
        elif bad is None:
            rate *= 2
        else:
            rate = (good * bad) ** 0.5
    return good
