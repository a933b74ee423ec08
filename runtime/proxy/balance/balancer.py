# SPDX-License-Identifier: Apache-2.0
"""The choice of a role change: a state machine that is told what the load needs, about once a second.

A change pays if the split behind it has less pressure. What it would gain is added up over time, less a margin, and the
change is due when that is enough: soon where one role has far too much to do, late where little is gained, and never
where it comes and goes (Page's cumulative sum test). With needs that stay the same each change lowers the pressure, so
that none is taken back.
"""

from dataclasses import dataclass, field
from math import exp, inf

from pontil.runtime.proxy.balance.needs import Needs

# Pressure below which nothing is to be gained.
CALM = 0.6
# The gain, as a part of the pressure, that a change has to exceed, and the seconds of a whole gain beyond it.
MARGIN, ENOUGH = 0.12, 1.0
# So many times as much, at first, for a change that goes back, and the seconds in which that becomes less.
BACK, FORGOTTEN = 5.0, 60.0
# Seconds from one change to the next, and to one that goes back.
PAUSE, REVERSAL = 2.0, 10.0
# The longest time in seconds between two needs that counts: a proxy that was stopped saw nothing meanwhile.
LONGEST = 2.0
PREFILL, DECODE = "prefill", "decode"


@dataclass(slots=True)
class RoleBalancer:
    """The state: what a change to each role has gained so far, when it was told last, and the last change."""

    gained: dict[str, float] = field(default_factory=lambda: {PREFILL: 0.0, DECODE: 0.0})
    told: float | None = None
    changed: float = -inf
    last: str | None = None

    def decide(self, now: float, needs: Needs, prefill: int, decode: int) -> str | None:
        """Return the role that one worker of the other is to take now, of so many workers; None: all keep theirs.
        Neither role loses its last worker."""
        seconds = 0.0 if self.told is None else min(LONGEST, max(0.0, now - self.told))
        self.told = now
        before = max(CALM, needs.pressure(prefill, decode))
        splits = {PREFILL: (prefill + 1, decode - 1), DECODE: (prefill - 1, decode + 1)}
        for role, split in splits.items():
            gain = 1.0 - max(CALM, needs.pressure(*split)) / before if min(split) >= 1 else -1.0
            self.gained[role] = max(0.0, self.gained[role] + seconds * (gain - MARGIN)) if gain > -1.0 else 0.0
        role = max(self.gained, key=lambda one: self.gained[one])
        return role if self.is_due(role, now - self.changed) else None

    def is_due(self, role: str, seconds: float) -> bool:
        """Return whether a change to a role has gained enough, so many seconds after the last one."""
        if self.last in (None, role):
            return seconds >= PAUSE and self.gained[role] >= ENOUGH
        return seconds >= REVERSAL and self.gained[role] >= ENOUGH * (1 + (BACK - 1) * exp(-seconds / FORGOTTEN))

    def made(self, now: float, role: str) -> None:
        """Note that a worker is being given this role."""
        self.changed, self.last = now, role
        self.gained = dict.fromkeys(self.gained, 0.0)
