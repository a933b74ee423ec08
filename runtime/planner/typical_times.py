# SPDX-License-Identifier: Apache-2.0
"""The seconds that work usually takes on a machine whose cores are faster at one time than at another."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from statistics import fmean, median
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)


class TypicalTimes(Generic[W]):
    """Seconds of kinds of work that are measured pass after pass. In a pass the median of a kind counts, since a moment
    of another program lengthens one of some steps; over the passes the mean, since cores that are slow for a while are
    slow for all that a launch does then."""

    def __init__(self) -> None:
        self.passes = defaultdict[W, list[float]](list)

    def add(self, measured: Iterable[tuple[W, float]]) -> None:
        """Take in what one pass measured, each kind once or several times."""
        by_kind = defaultdict[W, list[float]](list)
        for work, seconds in measured:
            by_kind[work].append(seconds)
        for work, some in by_kind.items():
            self.passes[work].append(median(some))

    def seconds(self) -> dict[W, float]:
        return {work: fmean(some) for work, some in self.passes.items()}
