# SPDX-License-Identifier: Apache-2.0
"""The rows that the background has in a step. Whoever comes waits for the rest of the step that is there, and whoever
is there for all of it, so that steps are little longer for the background: where rows cost little, as on GPUs, all take
part; where each costs, some do."""

from __future__ import annotations

import math
from collections.abc import Callable

from pontil.runtime.engine.drafts.costs import LinearCost

# Seconds after the last sequence of somebody else in which another one is expected.
LATELY = 60.0
# The most by which a step of a single row is longer for it, and a step with rows of others.
ALONE, BESIDE = 1.0, 0.5


class BackgroundRoom:
    """The room for the background in each step of an engine, by what its steps took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.cost = clock, LinearCost()
        self.others_at, self.ended_at = -math.inf, -math.inf

    def computed(self, rows: int, began: float, ended: float) -> None:
        """Take a step of so many rows. It may have been launched before the one before it was over."""
        self.cost.add(rows, ended - max(began, self.ended_at))
        self.ended_at = ended

    def rows(self, others: int, are_there: bool) -> int | None:
        """Return how many rows it may have beside those of others, of which some `are_there`; None for any number. It
        has one in any case, and as many as it likes while nobody else came for a while."""
        now = self.clock()
        if are_there:
            self.others_at = now
        if now - self.others_at > LATELY or not self.cost.per_row:
            return None
        seconds = (BESIDE if others else ALONE) * self.cost.seconds(max(1, others))
        return max(1, int(seconds / self.cost.per_row))
