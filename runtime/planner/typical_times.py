# SPDX-License-Identifier: Apache-2.0
"""The seconds that work usually takes on a machine whose cores are faster at one time than at another."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from itertools import pairwise
from math import log
from statistics import fmean, median
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)
# The mean distance of two draws from a normal distribution, in standard deviations.
MEAN_DISTANCE = 1.128


class TypicalTimes(Generic[W]):
    """Seconds of kinds of work that are measured pass after pass. In a pass the median of a kind counts, since a moment
    of another program lengthens one of some steps; over the passes the mean, since cores that are slow for a while are
    slow for all that a launch does then."""

    def __init__(self) -> None:
        self.passes = defaultdict[W, list[float]](list)
        self.distances = defaultdict[W, list[float]](list)

    def add(self, measured: Iterable[tuple[W, float]]) -> None:
        """Take in what one pass measured, each kind once or several times."""
        by_kind = defaultdict[W, list[float]](list)
        for work, seconds in measured:
            by_kind[work].append(seconds)
        for work, some in by_kind.items():
            self.passes[work].append(median(some))
            self.distances[work] += [abs(log(after / before)) for before, after in pairwise(some) if before * after]

    def seconds(self) -> dict[W, float]:
        return {work: fmean(some) for work, some in self.passes.items()}

    def variation(self, of: Callable[[W], bool]) -> float:
        """Return by how much the times of some kinds differ from one to the next of the same kind: the standard
        deviation of their logarithms. 0 where none was measured twice in a pass."""
        distances = [one for work, some in self.distances.items() if of(work) for one in some]
        return fmean(distances) / MEAN_DISTANCE if distances else 0.0
