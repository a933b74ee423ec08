# SPDX-License-Identifier: Apache-2.0
"""The seats of a worker by the callers that hold them, and the rule by which callers share them (docs/decisions/068).

The proxy goes by it when it sends a request to a worker, and the worker when it gives the seats of its batch.
"""

from pontil.runtime.foundation.fair_share import FairShare


class SeatCounts:
    """Counts of seats, O(1) to change. Conservation: `held` has the callers with a seat, and `taken` is its sum."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.weights: dict[str, float] = {}
        self.taken = 0

    def add(self, share: FairShare, seats: int = 1) -> None:
        """Add so many seats to what a caller holds, or take them off."""
        held = self.held.get(share.caller, 0) + seats
        assert held >= 0, "more seats were given back than were taken"
        self.taken += seats
        if held:
            self.held[share.caller], self.weights[share.caller] = held, share.weight
        else:
            self.held.pop(share.caller, None)
            self.weights.pop(share.caller, None)

    def level(self, share: FairShare, more: int = 0) -> float:
        """Return the seats that a caller holds, and so many more, for each unit of its weight."""
        return (self.held.get(share.caller, 0) + more) / share.weight

    def yields(self, caller: str, share: FairShare) -> bool:
        """Return whether one caller is to give a seat to another: only if it then still holds no less for its weight.
        So a seat that was given is never asked back, unless somebody else's seats change."""
        held = self.held.get(caller, 0)
        return held > 1 and (held - 1) / self.weights[caller] >= self.level(share, 1)

    def has_claim(self, share: FairShare) -> bool:
        """Return whether somebody is to give this caller a seat."""
        return any(self.yields(caller, share) for caller in self.held)

    def part(self, share: FairShare, seats: int) -> int:
        """Return the part of so many seats that belongs to a caller beside those that hold some now: at least one."""
        others = sum(weight for caller, weight in self.weights.items() if caller != share.caller)
        return max(1, int(seats * share.weight / (others + share.weight)))

    def claimable(self, share: FairShare, seats: int) -> int:
        """Return how many seats a caller is short of its part, where others hold more than theirs."""
        if not self.held or (len(self.held) == 1 and share.caller in self.held):
            return 0
        short = self.part(share, seats) - self.held.get(share.caller, 0)
        return short if short > 0 and self.has_claim(share) else 0
