# SPDX-License-Identifier: Apache-2.0
"""Room for what callers have waiting, of which none can take all."""

from collections import Counter

from pontil.runtime.proxy.requests.ticket import NO_KEY


class SharedRoom:
    """Room of `most` units, shared by callers. One may hold as much as it leaves free: so several that take all they
    can get hold the same part each, and as much is left for the next (dynamic thresholds: Choudhury and Hahne, 1998).
    Where nothing is held, one thing of any size fits. Clients without keys are not told apart, and may hold all of it.

    Conservation: `total` is the sum of what is `held`, which is what was taken less what was given back."""

    def __init__(self, most: int) -> None:
        self.most, self.total = most, 0
        self.held: Counter[str] = Counter()

    def fits(self, caller: str, size: int) -> bool:
        free_room = self.most - self.total - size
        return not self.total or free_room >= (0 if caller == NO_KEY else self.held[caller] + size)

    def take(self, caller: str, size: int) -> bool:
        """Take room; return False where it does not fit."""
        fits = self.fits(caller, size)
        if fits:
            self.hold(caller, size)
        return fits

    def hold(self, caller: str, size: int) -> None:
        """Count what is held already."""
        self.total += size
        self.held[caller] += size

    def give_back(self, caller: str, size: int) -> None:
        self.total -= size
        self.held[caller] -= size
        assert self.held[caller] >= 0, "more is given back than was taken"
        if not self.held[caller]:
            del self.held[caller]
