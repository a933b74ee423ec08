# SPDX-License-Identifier: Apache-2.0
"""The seats of a worker by the callers that hold them, and the rule by which callers share them (docs/decisions/068).

The proxy goes by it when it sends a request to a worker, and the worker when it gives the seats of its batch.
"""

import math

from pontil.runtime.foundation.fair_share import FairShare


class SeatCounts:
    """Counts of seats. Conservation: `held` has the callers with a seat, and `taken` is its sum. O(1) to change, and to
    ask for any number of callers between two changes; the first one takes O(callers). The seats of those that give way
    are counted apart, in `yielding`, whose sum is `lent`: they are free to everybody else, and no others are claimed
    for them."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.yielding: dict[str, int] = {}
        self.weights: dict[str, float] = {}
        self.taken = self.lent = 0
        # Derived from both: all weights, and the most that a caller has for its weight after it has given a seat.
        self.derived: tuple[float, float] | None = None

    def add(self, share: FairShare, seats: int = 1) -> None:
        """Add so many seats to what a caller holds, or take them off."""
        counts = self.yielding if share.gives_way else self.held
        held_seats = counts.get(share.caller, 0) + seats
        assert held_seats >= 0, "more seats are given back than were taken"
        if share.gives_way:
            self.lent += seats
            self.yielding[share.caller] = held_seats
            if not held_seats:
                del self.yielding[share.caller]
            return
        self.taken += seats
        if held_seats:
            self.held[share.caller], self.weights[share.caller] = held_seats, share.weight
        else:
            self.held.pop(share.caller, None)
            self.weights.pop(share.caller, None)
        self.derived = None

    @property
    def sums(self) -> tuple[float, float]:
        if self.derived is None:
            highest = max((self.after_giving(caller) for caller in self.held), default=-math.inf)
            self.derived = sum(self.weights.values()), highest
        return self.derived

    def after_giving(self, caller: str) -> float:
        """Return the seats that a caller holds after it has given one, for each unit of its weight; its last one is not
        asked for."""
        held_seats = self.held.get(caller, 0)
        return (held_seats - 1) / self.weights[caller] if held_seats > 1 else -math.inf

    def level(self, share: FairShare, more_seats: int = 0) -> float:
        """Return the seats that a caller holds, and so many more, for each unit of its weight."""
        counts = self.yielding if share.gives_way else self.held
        return (counts.get(share.caller, 0) + more_seats) / share.weight

    def yields(self, caller: str, share: FairShare) -> bool:
        """Return whether one caller is to give a seat to another: only if it then still holds no less for its weight.
        So a seat that was given is never asked back, unless somebody else's seats change."""
        return self.after_giving(caller) >= self.level(share, 1)

    def has_claim(self, share: FairShare) -> bool:
        """Return whether somebody is to give this caller a seat."""
        return not share.gives_way and self.sums[1] >= self.level(share, 1)

    def part(self, share: FairShare, seats: int) -> int:
        """Return the part of so many seats that belongs to a caller beside those that hold some now: at least one."""
        other_weights = max(0.0, self.sums[0] - self.weights.get(share.caller, 0.0))
        return max(1, int(seats * share.weight / (other_weights + share.weight)))

    def claimable(self, share: FairShare, seats: int) -> int:
        """Return how many seats a caller is short of its part, where others hold more than theirs."""
        if not self.held or (len(self.held) == 1 and share.caller in self.held):
            return 0
        short = self.part(share, seats) - self.held.get(share.caller, 0)
        return short if short > 0 and self.has_claim(share) else 0
