# SPDX-License-Identifier: Apache-2.0
"""The times at which a connection on which nothing was heard is replaced by a new one. Pure: no clock, no I/O."""

from dataclasses import dataclass

# Seconds until a connection on which nothing was heard is replaced; twice as many the next time, up to LONGEST. A link
# that comes back is used within LONGEST: what is repeated on an old connection waits for TCP, which tries ever less
# often. And a peer that let go of a connection, because an older one of ours reached it later, does not say so.
FIRST = 0.5
LONGEST = 1.0


@dataclass(slots=True)
class Renewal:
    """The state of one connection: it is replaced `at` that time unless something was `heard`; `count` says how often
    it was."""

    at: float
    count: int = 0
    heard: bool = False

    @classmethod
    def begun(cls, now: float) -> "Renewal":
        """Return the state of a connection that is new."""
        return cls(now + FIRST)

    def again(self, now: float) -> None:
        """Note that the connection has ended: it is replaced at once."""
        self.at, self.count, self.heard = now, 0, False

    def is_due(self, now: float) -> bool:
        return not self.heard and now >= self.at

    def renewed(self, now: float) -> None:
        """Note that the connection was replaced."""
        self.count += 1
        self.at = now + min(FIRST * 2**self.count, LONGEST)
