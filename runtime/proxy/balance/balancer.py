# SPDX-License-Identifier: Apache-2.0
"""The choice of a role change: a state machine that is told what the load needs, about once a second.

A change pays if the split behind it has less pressure, even if the needs are wrong by their error to its disadvantage,
and if no fewer requests are predicted to keep their limits there. One behind which more requests are predicted to keep
them pays too, but slowly: shares follow amounts, which tremble more than the ratio that pressures follow.
What it would gain is added up over time, less a margin, and the change is due when that is enough: soon where one role
has far too much to do, late where little is gained, and never where it comes and goes (Page's cumulative sum test).

No oscillation: a change pays by pressures only if the needs are more than (1 + ERROR) / (1 - ERROR) times what evens
the two splits out, and back only if they are less than its inverse; by shares only one direction pays, in which
pressures may not go back. So needs which stay the same never give both. A load that
changes by more, or a change that proves to be wrong by what waits since then, is followed back; each time that happens
within about a minute the next one back has to gain twice as much.
"""

from dataclasses import dataclass, field
from math import exp, inf

from pontil.runtime.proxy.balance.needs import Needs

# Pressure below which nothing is to be gained.
CALM = 0.6
# The part by which each role's needs may be wrong.
ERROR = 0.15
# Shares of requests that differ by no more are alike.
ALIKE = 0.02
# The gain, as a part of the pressure or of the requests that keep their limits, that a change has to exceed, and the
# seconds of a whole gain beyond it.
MARGIN, ENOUGH = 0.08, 0.6
# What a second of a gain in requests counts, beside one of pressure.
SLOWLY = 0.12
# Seconds in which changes that went back are forgotten.
FORGOTTEN = 60.0
# Seconds from one change to the next, and to one that goes back.
PAUSE, REVERSAL = 2.0, 10.0
# The longest time in seconds between two needs that counts: a proxy that was stopped saw nothing meanwhile.
LONGEST = 2.0
PREFILL, DECODE = "prefill", "decode"


def gain(role: str, needs: Needs, prefill: int, decode: int) -> float:
    """Return what one worker more for a role gains in a second, beyond the margin: less than 0 where that is nothing,
    and -inf where the other role would lose its last worker."""
    more, split = (1, (prefill + 1, decode - 1)) if role == PREFILL else (-1, (prefill - 1, decode + 1))
    if min(split) < 1:
        return -inf
    before, behind = needs.kept(prefill, decode), needs.kept(*split)
    if behind < before - ALIKE:
        return -MARGIN
    least = needs.times(1 - more * ERROR, 1 + more * ERROR)
    eased = 1.0 - max(CALM, least.pressure(*split)) / max(CALM, least.pressure(prefill, decode)) - MARGIN
    return max(eased, SLOWLY * (1.0 - before / behind - MARGIN)) if behind > before + ALIKE else eased


@dataclass(slots=True)
class RoleBalancer:
    """The state: what a change to each role has gained so far, when it was told last, the last change, and how many
    times as much as the first one the next one back has to gain."""

    gained: dict[str, float] = field(default_factory=lambda: {PREFILL: 0.0, DECODE: 0.0})
    told: float | None = None
    changed: float = -inf
    last: str | None = None
    back: float = 1.0

    def decide(self, now: float, needs: Needs, prefill: int, decode: int) -> str | None:
        """Return the role that one worker of the other is to take now, of so many workers; None: all keep theirs.
        Neither role loses its last worker."""
        seconds = 0.0 if self.told is None else min(LONGEST, max(0.0, now - self.told))
        self.told = now
        for role in self.gained:
            gained = gain(role, needs, prefill, decode)
            self.gained[role] = max(0.0, self.gained[role] + seconds * gained) if gained > -inf else 0.0
        role = max(self.gained, key=lambda one: self.gained[one])
        return role if self.is_due(role, now) else None

    def is_due(self, role: str, now: float) -> bool:
        """Return whether a change to a role has gained enough."""
        seconds = now - self.changed
        if self.last in (None, role):
            return seconds >= PAUSE and self.gained[role] >= ENOUGH
        return seconds >= REVERSAL and self.gained[role] >= ENOUGH * self.hold(seconds)

    def hold(self, seconds: float) -> float:
        """Return how many times as much a change back has to gain, so many seconds after the last change."""
        return 1.0 + (self.back - 1.0) * exp(-seconds / FORGOTTEN)

    def made(self, now: float, role: str) -> None:
        """Note that a worker is being given this role."""
        if self.last is not None:
            self.back = self.hold(now - self.changed) * (1.0 if role == self.last else 2.0)
        self.changed, self.last = now, role
        self.gained = dict.fromkeys(self.gained, 0.0)
